"""The module at which two computations of a broken law part, and the likely cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from snugfit.core.batch import Batch, split
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.step.model_checks.row_coupling import compare_rows
from snugfit.step.model_checks.traceless import relative_distance
from snugfit.step.step import Step
from snugfit.tools.certify import compare
from snugfit.tools.certify.trial import Trials

UNSEEDED = (
    "the same window computed twice gives another gradient: something draws from a generator that is not torch's, or "
    "keeps what it has seen"
)

ROWS_COMPARED = (
    "outputs are the same, and the losses of rows are not: the loss, or an auxiliary loss that is added to it, compares rows or divides by "
    "their number. Return a loss for each row by itself, or set couples_rows = True on the loss"
)

AUXILIARY = (
    "{module} makes one value of all rows of a pass ({value}), and the loss adds it: an auxiliary loss of rows that were averaged is another "
    "one in each micro-batch. Make it a loss for each row by itself, or set couples_rows = True on the loss"
)


def why_coupled(tried: Trials, step: Step) -> tuple[tuple[str, ...], str]:
    """Return why a split may give another gradient by right, and the module that it is about."""
    reasons = [
        f"'{name}' makes each example's loss depend on the others of its micro-batch, as its card says"
        for name in step.coupling
    ]
    norms = [
        name for name, each in step.model.named_modules() if isinstance(each, _BatchNorm) and each.training
    ]
    if norms:
        reasons.append(
            f"batch norm couples the examples of a micro-batch ({len(norms)} modules, the first '{norms[0]}'): its size is part of the recipe"
        )
    if unseeded(tried):
        return (), ""
    one, other = (
        compare.outputs_of(tried.step(other_draws=draws), tried.windows[0]) for draws in (False, True)
    )
    drawing = compare.parted(one, other, tried.bound)
    if drawing:
        named = compare.described(step.model, drawing)
        reasons.append(
            f"{named} draws random numbers for each micro-batch, and says nothing of a rate to turn off"
        )
    return tuple(reasons), drawing or (norms[0] if norms else "")


def where_split(tried: Trials, worst: str, group: int) -> tuple[str, tuple[str, ...]]:
    """Return the module at which a window and its halves part, and what is known of it."""
    if reasons := unseeded(tried):
        return where_unseeded(tried) or owner(worst), reasons
    whole, parts = (compare.outputs_of(tried.step(size), tried.windows[0]) for size in (None, group))
    name = compare.parted(whole, parts, tried.bound, len(split(tried.rows, group, group)))
    if not name:
        step = tried.step()
        losses = compare_rows(step, tried.windows[0].to(step.device), tried.rows)
        if losses is not None and losses.coupled and not losses.failed:
            module, value = where_rows_meet(step, tried.windows[0], tried.bound)
            if not value:
                return "", (ROWS_COMPARED,)
            named = compare.described(step.model, module)
            return module, (AUXILIARY.format(module=named, value=value),)
        return owner(worst), (
            "outputs and losses are the same, and gradients are not: the backward mixes rows",
        )
    named = compare.described(tried.step().model, name)
    return name, (f"{named} gives a row other outputs beside other rows",)


def where_rows_meet(step: Step, window: Batch, bound: float) -> tuple[str, str]:
    """Return the first module whose forward returns or keeps a value without an entry for each row, that other rows change.

    Returns:
        The module's name, and the value's in words; empty where there is none.
    """
    whole, half = (
        _values_of_a_pass(step, window.select(range(rows)).to(step.device))
        for rows in (window.rows, max(1, window.rows // 2))
    )
    for place, value in whole.items():
        other = half.get(place)
        if other is not None and other.shape == value.shape and relative_distance(other, value) > bound:
            return place
    return "", ""


def _values_of_a_pass(step: Step, window: Batch) -> dict[tuple[str, str], Tensor]:
    """Return what modules return or keep as attributes, with a gradient and without an entry for each row, by module and words."""
    values: dict[tuple[str, str], Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, _args: Any, output: Any) -> None:
            attributes = {key: value for key, value in vars(module).items() if key not in _OF_MODULES}
            sources = [
                ("an output", output),
                *((f"its attribute '{key}'", each) for key, each in attributes.items()),
            ]
            for words, source in sources:
                for leaf in leaves(source):
                    if leaf.grad_fn is not None and tuple(leaf.shape[:1]) != (window.rows,):
                        values.setdefault((name, words), leaf.detach().clone())

        return hook

    hooks = [module.register_forward_hook(keep(name)) for name, module in step.model.named_modules()]
    try:
        with step.computed(replace(window, padded=0)):
            return values
    finally:
        for hook in hooks:
            hook.remove()


_OF_MODULES = vars(nn.Module()).keys()
"""What every module has."""


def unseeded(tried: Trials) -> tuple[str, ...]:
    """Return what is to be said where the same computation does not give the same twice."""
    step = tried.step()
    window = tried.windows[0]
    gradients = []
    for _ in range(2):
        with step.computed(window.to(step.device)):
            gradients.append(compare.gradients(step))
    one, other = gradients
    same = compare.worst_of(compare.relative_errors(one, other))[0] <= tried.bound
    return () if same else (UNSEEDED,)


def where_unseeded(tried: Trials) -> str:
    """Return the first module that gives something else when the same window is computed again; empty where none does."""
    step = tried.step()
    one, other = (compare.outputs_of(step, tried.windows[0]) for _ in range(2))
    return compare.parted(one, other, tried.bound)


def where_recomputed(tried: Trials, plain: tuple[Technique, ...], again: tuple[Technique, ...]) -> str:
    """Return the first module whose outputs in backward are not those of the forward."""
    once, both = (
        compare.outputs_of(tried.step(dropout=True, techniques=each), tried.windows[0])
        for each in (plain, again)
    )
    second = {name: calls[len(once.get(name, ())) :] for name, calls in both.items()}
    first = {name: calls[: len(second[name])] for name, calls in both.items() if second[name]}
    return compare.parted(first, second, tried.bound)


def where_resumed(tried: Trials, middle: int, folder: Path) -> str:
    """Return the first module that gives something else in the resumed run than in the one that was not interrupted."""
    unbroken, resumed = tried.training(folder), tried.training(folder)
    for window in tried.windows[:middle]:
        unbroken.step(window)
    resumed.saving.load()
    one, other = (compare.outputs_of(each.step, tried.windows[middle]) for each in (unbroken, resumed))
    return compare.parted(one, other, tried.bit_bound)


def owner(parameter: str) -> str:
    """Return the module that a parameter is of."""
    return parameter.rpartition(".")[0]
