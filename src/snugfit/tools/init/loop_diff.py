"""The diff that puts a step into a training loop: a script is read as a syntax tree, and neither run nor changed."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from snugfit.errors import DataError
from snugfit.tools.init.surroundings import read_script

_LOSSES = {
    "cross_entropy": "cross_entropy",
    "CrossEntropyLoss": "cross_entropy",
    "mse_loss": "mse",
    "MSELoss": "mse",
}
_OF_MODEL = (("ForCausalLM", "causal_lm"), ("LMHeadModel", "causal_lm"), ("ForSequenceClassification", ""))
_READS = {"item", "detach", "cpu", "float"}
"""Methods by which a loss becomes a number."""
_BY_HAND = (
    "By hand: `step = sf.Step(model, optimizer)` once, where the optimizer is made, and `result = step((inputs, labels))` in place of zero_grad, "
    "forward, loss, backward, clipping and optimizer.step(); `result.loss` is the loss."
)


@dataclass(frozen=True)
class LoopDiff:
    """A unified diff of a script, and what to know of it."""

    script: str
    diff: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"script": self.script, "diff": self.diff, "notes": list(self.notes)}


@dataclass
class _Loop:
    """A loop that makes an update of each batch, by its statements."""

    path: Path
    text: str
    tree: ast.Module
    loop: ast.For
    scope: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
    parents: dict[ast.AST, ast.AST]
    loss: str
    optimizer: str
    removed: list[ast.stmt] = field(default_factory=list)
    techniques: list[str] = field(default_factory=list)

    def fail(self, node: ast.AST, problem: str) -> NoReturn:
        """Raise the error about a statement that stands in the way.

        Raises:
            DataError: always.
        """
        raise DataError(f"{self.path}:{getattr(node, 'lineno', 1)}", problem, _BY_HAND)

    @property
    def body(self) -> list[ast.stmt]:
        return [each for each in self.loop.body if each not in self.removed]


def loop_diff(path: Path) -> LoopDiff:
    """Return the diff that puts `sf.Step` into a script's training loop.

    The loop has to have `optimizer.zero_grad()`, `loss.backward()` and `optimizer.step()` as statements of its own, and
    a loss that Snugfit has: then the loop does the same with the step in it.

    Raises:
        DataError: there is no such loop, or something stands in the way; says on which line, and what to do by hand.
    """
    script = read_script(path)
    loop = _find_loop(path, script.text, script.tree)
    step = _statement_of(loop, lambda each: _method(each) == (loop.optimizer, "step"))
    zero = _statement_of(loop, lambda each: _method(each) == (loop.optimizer, "zero_grad"))
    backward = _statement_of(loop, lambda each: _method(each) == (loop.loss, "backward"))
    loop.removed += [zero, backward]
    for each in list(loop.body):
        _take_clipping(loop, each)
    model, batch, loss = _forward(loop)
    names = {node.id for node in ast.walk(script.tree) if isinstance(node, ast.Name)}
    own, imported = _module_name(script.tree, names)
    step_name = _free(names, "step", "train_step", "snugfit_step")
    result = _free(names, "result", "update", "step_result")
    arguments = [model, loop.optimizer, *([f'loss="{loss}"'] if loss != "cross_entropy" else [])]
    if loop.techniques:
        arguments.append(f"techniques=[{', '.join(f'{own}.{each}' for each in loop.techniques)}]")
    edits = _Edits(script.text)
    if not imported:
        _put_import(script.tree, edits, f"import snugfit as {own}")
    outer = _outermost(loop)
    edits.insert_before(outer, f"{step_name} = {own}.Step({', '.join(arguments)})")
    for each in loop.removed:
        edits.replace(each, None)
    edits.replace(step, f"{result} = {step_name}({batch})")
    _replace_losses(loop, edits, f"{result}.loss", step)
    diff = "".join(
        difflib.unified_diff(edits.before, edits.after(), f"a/{path.as_posix()}", f"b/{path.as_posix()}")
    )
    notes = (
        f"{path} is left as it is; to take the diff: snugfit init --from {path} | patch -p1",
        f"micro_batch=8 in {own}.Step splits each batch; dropout draws other numbers than before.",
    )
    return LoopDiff(str(path), diff, notes)


def _find_loop(path: Path, text: str, tree: ast.Module) -> _Loop:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    candidates = []
    for loop in loops:
        methods = [_method(each) for each in loop.body]
        losses = [name for name, method in filter(None, methods) if method == "backward"]
        optimizers = [name for name, method in filter(None, methods) if method == "zero_grad"]
        optimizers = [name for name in optimizers if (name, "step") in methods]
        if losses and optimizers:
            candidates.append((loop, losses, optimizers))
    if not candidates:
        _say_what_is_there(path, tree)
    loop, losses, optimizers = candidates[0]
    scope: ast.AST = loop
    while not isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
        scope = parents[scope]
    whole = _Loop(path, text, tree, loop, scope, parents, losses[0], optimizers[0])
    if len(candidates) > 1:
        whole.fail(candidates[1][0], "a second loop has updates of its own")
    if len(losses) > 1 or len(optimizers) > 1:
        whole.fail(loop, "the loop makes more than one update of a batch, or with several optimizers")
    if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = [each.arg for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]
        if whole.optimizer in arguments:
            whole.fail(
                scope,
                f"function {scope.name} gets the optimizer, and may be called once an epoch, where the step is to be made once",
            )
    return whole


def _say_what_is_there(path: Path, tree: ast.Module) -> NoReturn:
    """Raise the error about a script in which the loop is not found, by the nearest thing that is there.

    Raises:
        DataError: always.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    methods = {node.func.attr: node.lineno for node in calls if isinstance(node.func, ast.Attribute)}
    names = {node.func.id: node.lineno for node in calls if isinstance(node.func, ast.Name)}
    for trainer in ("Trainer", "SFTTrainer", "LightningModule"):
        line = names.get(trainer) or methods.get(trainer)
        if line:
            raise DataError(
                f"{path}:{line}",
                f"{trainer} has the loop, so there is none here to put a step into",
                "Train its model with sf.train(model, dataset), or from a recipe: snugfit init FILE_OF_ROWS",
            )
    if "backward" not in methods:
        raise DataError(
            path, "has no loss.backward(), so no training loop", "Name the script with the loop. " + _BY_HAND
        )
    problem = (
        "backward, optimizer.step() and optimizer.zero_grad() are not statements of one loop (they stand under a condition, in a block or "
        "in another function)"
    )
    raise DataError(f"{path}:{methods['backward']}", problem, _BY_HAND)


def _method(statement: ast.stmt) -> tuple[str, str] | None:
    """Return the object and the method of a statement that is a call `object.method(…)`; None for any other."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, (ast.Name, ast.Attribute)):
            return ast.unparse(function.value), function.attr
    return None


def _statement_of(loop: _Loop, matches: Any) -> ast.stmt:
    return next(each for each in loop.loop.body if matches(each))


def _take_clipping(loop: _Loop, statement: ast.stmt) -> None:
    """Make a technique of a statement that clips the norm of all gradients."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return
    call = statement.value
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name not in ("clip_grad_norm_", "clip_grad_value_"):
        return
    bound = call.args[1] if len(call.args) > 1 else next((each.value for each in call.keywords), None)
    if name != "clip_grad_norm_" or bound is None or len(call.args) + len(call.keywords) != 2:
        loop.fail(statement, f"{ast.unparse(call)} has no step of the same")
    loop.techniques.append(f"ClipNorm({ast.unparse(bound)})")
    loop.removed.append(statement)


def _forward(loop: _Loop) -> tuple[str, str, str]:
    """Return the model, the batch for the step, and the name of the loss; takes the statements that compute them out.

    Raises:
        DataError: the loss is not one that Snugfit has, or not of one call of the model.
    """
    assigned = _assignment(loop, loop.loss)
    if assigned is None:
        loop.fail(loop.loop, f"'{loop.loss}' is not assigned in the loop itself")
    loop.removed.append(assigned)
    value: ast.expr = assigned.value
    if isinstance(value, ast.Attribute) and value.attr == "loss":  # a model of transformers has its own
        call = _call_of_model(loop, value.value)
        if call.args or len(call.keywords) != 1 or call.keywords[0].arg is not None:
            loop.fail(assigned, f"{ast.unparse(call)} is not of the form model(**batch)")
        loss = next((loss for word, loss in _OF_MODEL if word in loop.text), None)
        if loss is None:
            loop.fail(assigned, "the loss is the model's own, which the script does not tell")
        return ast.unparse(call.func), ast.unparse(call.keywords[0].value), loss or "cross_entropy"
    if not isinstance(value, ast.Call) or len(value.args) != 2 or value.keywords:
        loop.fail(assigned, f"the loss is {ast.unparse(value)}, expected LOSS(outputs, labels)")
    loss = _loss_name(loop, value.func)
    if loss is None:
        loop.fail(assigned, f"{ast.unparse(value.func)} is not cross_entropy or mse_loss at its defaults")
    call = _call_of_model(loop, value.args[0])
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        loop.fail(assigned, f"{ast.unparse(call)} takes more than one input")
    return (
        ast.unparse(call.func),
        f"({ast.unparse(call.args[0])}, {ast.unparse(value.args[1])})",
        loss,
    )


def _call_of_model(loop: _Loop, outputs: ast.expr) -> ast.Call:
    """Return the call of the model that gave these outputs, and take out the statement that has it.

    Raises:
        DataError: they are not the outputs of one call, or are used for more than the loss.
    """
    if isinstance(outputs, ast.Name):
        assigned = _assignment(loop, outputs.id)
        if assigned is None or not isinstance(assigned.value, ast.Call):
            loop.fail(outputs, f"'{outputs.id}' is not the model's output as it is")
        loop.removed.append(assigned)
        uses = [
            node
            for statement in loop.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and node.id == outputs.id
        ]
        if uses:
            loop.fail(
                uses[0], f"'{outputs.id}' is used for more than the loss, and the step does not give it out"
            )
        outputs = assigned.value
    if not isinstance(outputs, ast.Call) or any(
        isinstance(node, ast.Call) for node in ast.walk(outputs.func)
    ):
        loop.fail(outputs, f"{ast.unparse(outputs)} is not the model's output as it is")
    return outputs


def _assignment(loop: _Loop, name: str) -> ast.Assign | None:
    """Return the one statement of the loop that assigns a name."""
    assigned = [
        each
        for each in loop.body
        if isinstance(each, ast.Assign)
        and len(each.targets) == 1
        and isinstance(each.targets[0], ast.Name)
        and each.targets[0].id == name
    ]
    return assigned[0] if len(assigned) == 1 else None


def _loss_name(loop: _Loop, function: ast.expr) -> str | None:
    """Return Snugfit's name of a loss: a function of torch, or a variable that holds a module of it without arguments."""
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    if name in ("cross_entropy", "mse_loss"):
        return _LOSSES[name]
    made = [
        node.value
        for node in ast.walk(loop.tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(function)
    ]
    if len(made) != 1:
        return None
    call = made[0]
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "to":
        call = call.func.value  # moved to a device
    if not isinstance(call, ast.Call) or call.args or call.keywords:
        return None
    module = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    return _LOSSES.get(module)


def _outermost(loop: _Loop) -> ast.stmt:
    """Return the statement before which the step is made: the outermost loop that does not make the optimizer itself."""
    outer: ast.stmt = loop.loop
    node: ast.AST = loop.loop
    while node is not loop.scope:
        makes = any(
            isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == loop.optimizer
            for each in ast.walk(node)
        )
        if makes:
            break
        if isinstance(node, (ast.For, ast.While)):
            outer = node
        node = loop.parents[node]
    return outer


def _replace_losses(loop: _Loop, edits: _Edits, number: str, step: ast.stmt) -> None:
    """Read the loss from the step's result wherever it was read."""
    stores = [
        node
        for node in ast.walk(loop.scope)
        if isinstance(node, ast.Name) and node.id == loop.loss and isinstance(node.ctx, ast.Store)
    ]
    within: ast.AST = loop.scope if len(stores) == 1 else loop.loop
    gone = {node for each in (*loop.removed, step) for node in ast.walk(each)}
    for node in ast.walk(within):
        if not isinstance(node, ast.Name) or node.id != loop.loss or node in gone:
            continue
        if isinstance(node.ctx, ast.Store):
            continue
        read: ast.AST = node
        while True:
            attribute = loop.parents[read]
            call = loop.parents.get(attribute)
            if not isinstance(attribute, ast.Attribute) or attribute.attr not in _READS:
                break
            if not isinstance(call, ast.Call) or call.args or call.keywords:
                break
            read = call
        if isinstance(loop.parents[read], ast.Attribute):
            loop.fail(read, f"{ast.unparse(loop.parents[read])} is read, and the step's loss is a number")
        if not edits.has(read):
            loop.fail(read, f"{ast.unparse(read)} is read in a text whose place Python does not tell")
        edits.replace_expression(read, number)


def _module_name(tree: ast.Module, names: set[str]) -> tuple[str, bool]:
    """Return the name under which Snugfit is imported, and whether it is imported already."""
    for node in tree.body:
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == "snugfit":
                return alias.asname or alias.name, True
    return _free(names, "sf", "snugfit"), False


def _free(names: set[str], *wishes: str) -> str:
    return next((wish for wish in wishes if wish not in names), wishes[-1] + "_")


def _put_import(tree: ast.Module, edits: _Edits, line: str) -> None:
    """Put an import behind those on top of a script, or before its first statement."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    if imports:
        edits.insert_after(imports[-1], line)
    else:
        documented = ast.get_docstring(tree) is not None
        edits.insert_before(tree.body[1 if documented else 0], line)


class _Edits:
    """Changes of a text, by statements and expressions of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.before = text.splitlines(keepends=True)
        self._lines: dict[int, list[str] | None] = {}
        self._inserted: dict[int, list[str]] = {}
        self._expressions: dict[int, list[tuple[int, int, str]]] = {}

    def replace(self, statement: ast.stmt, line: str | None) -> None:
        """Put one line in the place of a statement, or nothing."""
        for number in _lines_of(statement):
            self._lines[number] = None
        if line is not None:
            self._lines[statement.lineno] = [self._indented(statement, line)]

    def insert_before(self, statement: ast.stmt, line: str) -> None:
        self._inserted.setdefault(statement.lineno, []).append(self._indented(statement, line))

    def insert_after(self, statement: ast.stmt, line: str) -> None:
        end = statement.end_lineno or statement.lineno
        self._inserted.setdefault(end + 1, []).insert(0, self._indented(statement, line))

    def has(self, node: ast.AST) -> bool:
        """Return whether an expression stands where the tree says: inside texts of several parts it may not."""
        begin, end, line = node.col_offset, node.end_col_offset, node.lineno  # type: ignore[attr-defined]
        text: str = self.before[line - 1].encode()[begin:end].decode()
        return text == ast.unparse(node)

    def replace_expression(self, node: ast.AST, text: str) -> None:
        """Put a text in the place of an expression on one line."""
        begin, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        self._expressions.setdefault(node.lineno, []).append((begin, end, text))  # type: ignore[attr-defined]

    def after(self) -> list[str]:
        """Return the lines with all changes."""
        return list(self._after())

    def _after(self) -> Iterator[str]:
        for number, line in enumerate(self.before, 1):
            yield from self._inserted.get(number, ())
            if number in self._lines:
                yield from self._lines[number] or ()
                continue
            content = line.encode()
            for begin, end, text in sorted(self._expressions.get(number, ()), reverse=True):
                content = content[:begin] + text.encode() + content[end:]
            yield content.decode()

    def _indented(self, statement: ast.stmt, line: str) -> str:
        return f"{' ' * statement.col_offset}{line}\n"


def _lines_of(statement: ast.stmt) -> Sequence[int]:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
