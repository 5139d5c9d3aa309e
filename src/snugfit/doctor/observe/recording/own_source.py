"""Lines of a script's own source that tell where something was done that no function of torch sees."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from snugfit.doctor.observe.recording.script_frames import innermost, is_own, line_in, shown
from snugfit.doctor.observe.source.apart_samples import sampled_apart
from snugfit.doctor.observe.source.overwritten_names import last_set
from snugfit.doctor.observe.source.row_orders import shuffled_apart
from snugfit.doctor.observe.source.script_syntax import syntax_of

_DRAWS = re.compile(r"\b(shuffle|train_test_split|randperm|permutation)\(")
_ZERO_RATE = re.compile(r"\b\w*lr[\"']?\s*[:=]\s*0(\.0*)?\s*([,)}#]|$)")
_SPLITS = re.compile(r"\b(random_split|train_test_split)\(")


def line_that_sets(attributes: Iterable[str]) -> str:
    """Return file:line where the script sets the first of these attributes to False, not in a loop over parameters if it is that of a module; "" without."""
    attribute = next(iter(attributes), "")
    name = re.escape(attribute)
    sets = re.compile(rf"\.{name}\s*=\s*False\b|setattr\(.*[\"']{name}[\"']")

    def matches(lines: Sequence[str], number: int) -> bool:
        of_parameters = attribute == "requires_grad" and "parameters(" in "".join(
            lines[max(0, number - 2) : number + 1]
        )
        return bool(sets.search(lines[number])) and not of_parameters

    return first_line(matches) if attribute else ""


def sets_rate_of_zero() -> bool:
    """Return whether the script sets a learning rate to 0 as it stands: not one that comes to 0."""
    return bool(first_line(lambda lines, number: bool(_ZERO_RATE.search(lines[number]))))


def line_that_splits() -> str:
    """Return file:line where the script splits its rows at random; "" where its source does not show it."""
    return first_line(
        lambda lines, number: bool(_SPLITS.search(lines[number])) and "import" not in lines[number]
    )


def line_of_hook(words: re.Pattern[str]) -> str:
    """Return file:line where the script puts a hook on gradients that has one of these words, by itself or in the function that it names; "" without."""
    for file in own_files():
        nodes = list(ast.walk(syntax_of(file)))
        functions = {each.name: each for each in nodes if isinstance(each, ast.FunctionDef)}
        for each in nodes:
            if not isinstance(each, ast.Call) or not isinstance(each.func, ast.Attribute) or not each.args:
                continue
            hook: ast.AST = each.args[0]
            named = hook.func if isinstance(hook, ast.Call) else hook
            name = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
            texts = [ast.unparse(part) for part in (hook, functions.get(name)) if part is not None]
            if "hook" in each.func.attr and any(map(words.search, texts)):
                return f"{shown(file)}:{each.lineno}"
    return ""


def line_that_cuts_twice() -> str:
    """Return file:line of a statement that takes the front and the back of one array by bounds that are not the same, by which they may overlap; "" without."""
    for file in own_files():
        for each in ast.walk(syntax_of(file)):
            if (
                isinstance(each, ast.Assign | ast.Return)
                and each.value is not None
                and _cuts_twice(each.value)
            ):
                return f"{shown(file)}:{each.lineno}"
    return ""


def _cuts_twice(value: ast.expr) -> bool:
    """Return whether an expression has a front and a back of one name, and none of the backs begins where a front ends.

    A front that leaves out at the end what the back leaves out at the beginning is a shift, as of the next tokens.

    >>> [_cuts_twice(ast.parse(text, mode="eval").body) for text in ("x[:n], x[n:]", "x[:-k], x[-k:]", "{'a': x[:n], 'b': x[-n:]}")]
    [False, False, True]
    >>> [_cuts_twice(ast.parse(text, mode="eval").body) for text in ("x[:-1], x[1:]", "x[:-k], x[k:]")]
    [False, False]
    """
    fronts: dict[str, set[str]] = {}
    backs: dict[str, set[str]] = {}
    for each in ast.walk(value):
        if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Slice) and each.slice.step is None:
            lower, upper = each.slice.lower, each.slice.upper
            if lower is None and upper is not None:
                ends = fronts.setdefault(ast.unparse(each.value), set())
                ends.add(ast.unparse(upper))
                if isinstance(upper, ast.UnaryOp) and isinstance(upper.op, ast.USub):
                    ends.add(ast.unparse(upper.operand))
            elif lower is not None and upper is None:
                backs.setdefault(ast.unparse(each.value), set()).add(ast.unparse(lower))
    return any(ends.isdisjoint(backs.get(name, ends)) for name, ends in fronts.items())


def line_that_moves_nothing() -> str:
    """Return file:line of a loop over the parameters of two models that only sets its own names anew, by which no weight moves; "" without."""
    for file in own_files():
        text = "".join(linecache.getlines(file))
        if "zip(" not in text or "parameters()" not in text:
            continue
        for loop in (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.For)):
            if _moves_nothing(loop):
                return f"{shown(file)}:{loop.body[-1].lineno}"
    return ""


def line_that_follows() -> str:
    """Return file:line of the only statement in a loop over the parameters of two models that writes to one of them, as an average does; "" without one, or with several."""
    lines = []
    for file in own_files():
        text = "".join(linecache.getlines(file))
        if "zip(" in text and "parameters()" in text:
            loops = [
                each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.For) and _is_over_two(each)
            ]
            lines += [f"{shown(file)}:{each.body[-1].lineno}" for each in loops]
    return lines[0] if len(lines) == 1 else ""


def _is_over_two(loop: ast.For) -> bool:
    over = loop.iter
    if not isinstance(over, ast.Call) or ast.unparse(over.func) != "zip" or len(over.args) < 2:
        return False
    return all(
        "parameters()" in ast.unparse(each) or "state_dict()" in ast.unparse(each) for each in over.args[:2]
    )


def _moves_nothing(loop: ast.For) -> bool:
    """Return whether a loop goes over parameters of several models, and all it does is to compute one of its names of the others.

    >>> _moves_nothing(ast.parse("for a, b in zip(x.parameters(), y.parameters()): b = 0.9 * b + 0.1 * a").body[0])
    True
    >>> _moves_nothing(ast.parse("for a, b in zip(x.parameters(), y.parameters()): b.data = 0.9 * b + 0.1 * a").body[0])
    False
    """
    over = loop.iter
    if not isinstance(over, ast.Call) or ast.unparse(over.func) != "zip" or len(over.args) < 2:
        return False
    if not all(ast.unparse(each).endswith("parameters()") for each in over.args):
        return False
    names = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    for statement in loop.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if (
            not isinstance(statement, ast.Assign)
            or not isinstance(target, ast.Name)
            or target.id not in names
        ):
            return False
        calls = [each.func for each in ast.walk(statement.value) if isinstance(each, ast.Call)]
        if any(isinstance(each, ast.Attribute) and each.attr.endswith("_") for each in calls):
            return False  # in place
    return True


def line_that_draws_apart() -> tuple[str, str, str] | None:
    """Return file:line where the script puts one of two arrays, which it pairs row by row, into an order of its own, and their names; None without."""
    for file in own_files():
        drawn = _DRAWS.findall("".join(linecache.getlines(file)))
        apart = shuffled_apart(file) if len(drawn) > 1 else None
        sampled = None if apart is not None else sampled_apart(file)
        # rows of two kinds that belong to no pairs are as wide as each other; a label for each is one number
        if sampled is not None and sorted(_axes_of(file, each) for each in sampled[1:]) == [1, 2]:
            apart = sampled
        if apart is not None:
            return f"{shown(file)}:{apart[0]}", apart[1], apart[2]
    return None


def _axes_of(file: str, name: str) -> int:
    """Return how many axes an array has that a module knows by this name; 0 where it knows none, 2 for two or more."""
    modules = [each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == file]
    return max((min(int(getattr(vars(each).get(name), "ndim", 0)), 2) for each in modules), default=0)


def own_files() -> Iterator[str]:
    """Yield the source files of the script's own modules."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and is_own(file):
            yield file


def first_line(matches: Callable[[Sequence[str], int], bool]) -> str:
    """Return file:line of the first line of the script's source that matches, which is asked with all lines of a file and a number; "" without."""
    for file in own_files():
        lines = linecache.getlines(file)
        for number in range(len(lines)):
            if matches(lines, number):
                return f"{shown(file)}:{number + 1}"
    return ""


def line_of_loss() -> str:
    """Return the line that last set the name of what the script differentiates here; "" where its source does not show it."""
    frame = innermost()
    line = 0 if frame is None else last_set(frame.f_code.co_filename, frame.f_lineno)
    return "" if frame is None or not line else line_in(frame, line)
