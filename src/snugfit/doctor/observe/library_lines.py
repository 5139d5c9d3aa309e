"""Lines of a script that tell a library's trainer what to do: while that trains, the script itself stands at one line, whatever is wrong."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable

from snugfit.doctor.observe.own_source import own_files
from snugfit.doctor.observe.script_syntax import last_assignment, last_name, reads, syntax_of
from snugfit.doctor.observe.watchers.watch_log import shown

_RUNS = re.compile(r"\.(fit|train|evaluate|validate|test|predict|run)\(")
_ADDED = re.compile(r"loss", re.IGNORECASE)
_READ = ("item", "detach", "tolist", "cpu", "numpy")
_LABELS, _MASK = "labels", "attention_mask"
_MEANS = re.compile(r"(cross_entropy|nll_loss|mse_loss|l1_loss|with_logits|Loss\(.*\))$")
_ITEMS = "num_items_in_batch"
_LABELED, _TOKENS = re.compile(r"label|target|tgt"), re.compile(r"ids|token|text|seq")
_PAD = re.compile(r"(?i)^pad(_?(id|token|idx|index|token_id))?$")
_KEYWORDS = {
    "learning_rate": ("learning_rate",),
    "schedule_length": ("warmup_steps", "warmup_ratio", "max_steps", "num_train_epochs"),
    "leakage": ("eval_dataset", "val_dataloaders"),
}
"""Arguments of settings and of trainers that decide what a pitfall is about."""
_ENTRIES = {
    "scored_padding": _LABELS,
    "shifted_labels": _LABELS,
    "end_never_scored": _LABELS,
    "ignored_labels": _LABELS,
    "unmasked_padding": _MASK,
}
"""Entries of a batch in which a pitfall lies."""
CAUSES = (*_KEYWORDS, *_ENTRIES, "growing_graph")


def library_runs(lines: Iterable[str]) -> list[str]:
    """Return those of the lines, as file:line, that start a library's whole training or evaluation, or set it up."""
    return sorted(each for each in set(lines) if _RUNS.search(text := _text_of(each)) or _is_setting(text))


def cause_lines() -> dict[str, str]:
    """Return the lines at which the script's own source decides what pitfalls are about, by the pitfall."""
    lines: dict[str, str] = {}
    for file in own_files():
        tree = syntax_of(file)
        for pitfall in CAUSES:
            line = 0 if pitfall in lines else _line_for(tree, pitfall)
            if line:
                lines[pitfall] = f"{shown(file)}:{line}"
    return lines


def line_of_way() -> str:
    """Return file:line where the script says which way a score is better; "" where it does not."""
    for file in own_files():
        line = line_of_keyword(syntax_of(file), ("greater_is_better", "metric_for_best_model", "mode"))
        if line:
            return f"{shown(file)}:{line}"
    return ""


def _text_of(at: str) -> str:
    file, _, number = at.rpartition(":")
    return linecache.getline(file, int(number)) if number.isdigit() else ""


def _is_setting(text: str) -> bool:
    return bool(re.search(r"\w*(Arguments|Config)\(", text))


def _line_for(tree: ast.Module, pitfall: str) -> int:
    if pitfall in _KEYWORDS:
        return line_of_keyword(tree, _KEYWORDS[pitfall])
    if pitfall in _ENTRIES:
        line = line_of_entry(tree, _ENTRIES[pitfall])
        if (
            pitfall == "shifted_labels"
        ):  # a collator that masks nothing makes labels of the tokens that are read
            return line or line_of_keyword(tree, ("mlm",))
        return line or (line_of_shared_end(tree) if pitfall == "end_never_scored" else 0)
    return line_that_keeps(tree)


def line_of_keyword(tree: ast.Module, names: Iterable[str]) -> int:
    r"""Return the line of an argument of one of these names, the first that a call has; where it is a name, of what that was made; 0 without.

    >>> text = "held = part(rows)\ntrainer = Trainer(model,\n    eval_dataset=held)"
    >>> line_of_keyword(ast.parse(text), ["eval_dataset"]), line_of_keyword(ast.parse(text), ["data"])
    (1, 0)
    """
    for name in names:
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg == name:
                    value = keyword.value
                    made = _made_at(tree, value.id, keyword.lineno) if isinstance(value, ast.Name) else 0
                    return made or keyword.value.lineno
    return 0


def line_of_entry(tree: ast.Module, name: str) -> int:
    r"""Return the line that makes an entry of a batch; 0 without.

    >>> text = "def f(rows):\n    y = rows.clone()\n    return {'ids': rows, 'labels': y}"
    >>> line_of_entry(ast.parse(text), "labels"), line_of_entry(ast.parse("b['labels'] = b['ids']"), "labels")
    (2, 1)
    """
    for each in ast.walk(tree):
        value: ast.expr | None = None
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Subscript):
            key = each.targets[0].slice
            value = each.value if isinstance(key, ast.Constant) and key.value == name else None
        elif isinstance(each, ast.Dict):
            pairs = zip(each.keys, each.values, strict=True)
            value = next((v for k, v in pairs if isinstance(k, ast.Constant) and k.value == name), None)
        elif isinstance(each, ast.Call) and getattr(each.func, "id", "") == "dict":
            value = next((k.value for k in each.keywords if k.arg == name), None)
        if value is not None:
            made = _made_at(tree, value.id, value.lineno) if isinstance(value, ast.Name) else 0
            return made or value.lineno
    return 0


def line_of_unscaled_loss(tree: ast.Module) -> int:
    r"""Return the line of a trainer's own `compute_loss` that does not read how many items the whole update has; 0 without, and where a line of it is a mean by itself.

    >>> text = "def compute_loss(self, model, inputs, num_items_in_batch=None):\n    return loss(model, inputs){}"
    >>> [line_of_unscaled_loss(ast.parse(text.format(more))) for more in ("", " / num_items_in_batch")]
    [1, 0]
    """
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef) and each.name == "compute_loss" and not reads(each, _ITEMS):
            means = [
                call
                for call in ast.walk(each)
                if isinstance(call, ast.Call) and _MEANS.search(ast.unparse(call.func))
            ]
            whole = any(
                all(keyword.arg != "reduction" or _is_mean(keyword.value) for keyword in call.keywords)
                for call in means
            )
            return 0 if whole else each.lineno
    return 0


def _is_mean(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == "mean"


def line_of_shared_transform(tree: ast.Module) -> int:
    r"""Return the last line that sets a transform of the data set of which another one is a part, and so of all of its parts; 0 without.

    >>> line_of_shared_transform(ast.parse("train.dataset.transform = augment"))
    1
    """
    lines = [
        each.lineno
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and isinstance(target := each.targets[0], ast.Attribute)
        and last_name(target.value) == "dataset"
        and isinstance(target.value, ast.Attribute)
    ]
    return max(lines, default=0)


def line_that_pads_labels(tree: ast.Module) -> int:
    r"""Return the line that lengthens labels by a token of padding; 0 without.

    >>> line_that_pads_labels(ast.parse("labels.append(row['labels'] + [PAD] * gap)")), line_that_pads_labels(ast.parse("ids.append(row + [PAD] * gap)"))
    (1, 0)
    """
    for each in (part for part in ast.walk(tree) if isinstance(part, ast.Expr | ast.Assign)):
        value = each.value
        if isinstance(each, ast.Assign):
            owner: ast.expr | None = each.targets[0]
        else:
            filled = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
            owner = value.func.value if filled else None  # type: ignore[attr-defined]
        joined = any(
            isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult) for part in ast.walk(value)
        )
        names = {last_name(part) for part in ast.walk(value) if isinstance(part, ast.Name | ast.Attribute)}
        if (
            owner is not None
            and joined
            and _LABELED.search(ast.unparse(owner))
            and any(map(_PAD.match, names))
        ):
            return each.lineno
    return 0


def line_that_cuts(tree: ast.Module) -> int:
    r"""Return the only line that cuts tokens to a length; 0 without one, or with several.

    >>> line_that_cuts(ast.parse("input_ids = (prompt + answer)[:MAX]")), line_that_cuts(ast.parse("head = rows[:5]"))
    (1, 0)
    """
    lines = []
    for each in (part for part in ast.walk(tree) if isinstance(part, ast.Assign)):
        if isinstance(each.value, ast.Subscript) and isinstance(each.value.slice, ast.Slice):
            cut = each.value.slice
            if cut.lower is None and cut.upper is not None and _TOKENS.search(ast.unparse(each.targets[0])):
                lines.append(each.lineno)
    return lines[0] if len(lines) == 1 else 0


def line_of_shared_end(tree: ast.Module) -> int:
    r"""Return the line that takes the token which ends a text for that of padding; 0 without.

    >>> line_of_shared_end(ast.parse("tokenizer.pad_token = tokenizer.eos_token"))
    1
    """
    for each in (part for part in ast.walk(tree) if isinstance(part, ast.Assign)):
        if last_name(each.targets[0]).startswith("pad_token") and last_name(each.value).startswith(
            "eos_token"
        ):
            return each.lineno
    return 0


def line_that_keeps(tree: ast.Module) -> int:
    """Return the line that adds a loss with its graph to something that outlives the step; 0 without.

    >>> line_that_keeps(ast.parse("self.seen.append(loss)")), line_that_keeps(ast.parse("self.seen.append(loss.item())"))
    (1, 0)
    """
    for each in (part for part in ast.walk(tree) if isinstance(part, ast.Call | ast.AugAssign)):
        value: ast.expr | None = None
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "append":
            value = each.args[0] if len(each.args) == 1 else None
        elif isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add):
            value = each.value if isinstance(each.target, ast.Attribute) else None
        if value is not None and _has_graph(value):
            return each.lineno
    return 0


def _has_graph(value: ast.expr) -> bool:
    """Return whether an expression is a loss that nothing takes out of its graph."""
    taken = any(isinstance(each, ast.Attribute) and each.attr in _READ for each in ast.walk(value))
    numbers = any(
        isinstance(each, ast.Call) and getattr(each.func, "id", "") == "float" for each in ast.walk(value)
    )
    losses = any(isinstance(each, ast.Name) and _ADDED.search(each.id) for each in ast.walk(value))
    return losses and not taken and not numbers


def _made_at(tree: ast.Module, name: str, before: int) -> int:
    """Return the last line up to this one that sets a name; 0 without."""
    made = last_assignment(tree, name, before + 1)
    return 0 if made is None else made.lineno
