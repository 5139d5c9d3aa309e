"""The law of skipped windows: one that is not finite, or in which nothing counts, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from snugfit.core.batch import IGNORE_INDEX, LABELS, Batch, inputs_of, labels_of
from snugfit.core.tree import leaves, map_tree
from snugfit.results.verdicts import Law, Trial, Verdict
from snugfit.step.step import Step
from snugfit.tools.certify import blame, compare
from snugfit.tools.certify.trial import Trials


def skip(tried: Trials) -> Law:
    """Check that a window that is not finite, and one in which nothing counts, changes nothing of the state nor of the next update."""
    first, bad, last = tried.windows[:3]
    skipping, never = (tried.step(tried.micro_batch, dropout=True) for _ in range(2))
    skipping(first), never(first)
    apart: dict[str, float] = {}
    reasons: list[str] = []
    done: list[Trial] = []
    before = compare.copied(skipping.state_dict())
    for what, spoiled in _bad_windows(skipping, bad).items():
        progress = skipping.progress.state_dict()
        if not spoiled():  # and perhaps it was learned from
            skipping.load_state_dict({**before, "progress": progress})
            reasons.append(f"not tried: {what}")
            continue
        moved = _moved(skipping, before)
        never.progress.windows += 1  # random numbers are of the window's number
        done.append(Trial(what, *compare.worst_weight(moved)))
        apart |= moved
    skipping(last), never(last)
    after = {
        path: error
        for path, error in compare.differences(skipping.state_dict(), never.state_dict()).items()
        if _is_learned(path, skipping)
    }
    done.append(Trial("the update after them", *compare.worst_weight(after)))
    error, worst = compare.worst_weight({**after, **apart})
    bound = tried.bit_bound if skipping.seams.scale is None else tried.bound
    if error <= bound:
        return Law("skip", Verdict.HELD, error, bound, worst, reasons=tuple(reasons), trials=tuple(done))
    module = blame.where_unseeded(tried) or blame.owner(worst)
    return Law(
        "skip", Verdict.BROKEN, error, bound, worst, module, (*reasons, *blame.unseeded(tried)), tuple(done)
    )


def _bad_windows(step: Step, window: Batch) -> dict[str, Callable[[], bool]]:
    """Return, by what is wrong with it, a function that trains on such a window, and says whether there was one to skip."""

    def poisoned() -> bool:
        spoiled = _poisoned(window)
        return spoiled is not None and not step(spoiled).applied

    def overflowed() -> bool:
        if step.seams.irrevocable:  # undone by going back to a checkpoint, not by the step
            return False
        overflows: list[bool] = []

        def overflow(gradient: Tensor) -> Tensor:
            overflows.append(True)
            return gradient * torch.inf

        hooks = [each.register_hook(overflow) for each in step.parameters if each.requires_grad]
        try:
            step(window)
        finally:
            for hook in hooks:
                hook.remove()
        return bool(overflows)  # a window that reaches no parameter has no gradient to overflow

    def empty() -> bool:
        spoiled = _unlabelled(window)
        if spoiled is None:
            return False
        try:
            return step(spoiled).weight == 0
        except (IndexError, RuntimeError):  # a loss that takes every label for a class
            return False

    return {
        "a NaN in the inputs": poisoned,
        "an infinite gradient": overflowed,
        "no label that counts": empty,
    }


def _poisoned(window: Batch) -> Batch | None:
    """Return the window with a NaN in each floating input; None where it has none."""
    args, kwargs = inputs_of(window.data)
    inputs = {id(leaf) for leaf in leaves([args, kwargs]) if leaf.is_floating_point() and leaf.numel()}
    if not inputs:
        return None

    def poison(tensor: Tensor) -> Tensor:
        if id(tensor) not in inputs:
            return tensor
        spoiled = tensor.clone()
        spoiled.view(-1)[0] = torch.nan
        return spoiled

    return Batch.of(map_tree(poison, window.data), window.ids)


def _unlabelled(window: Batch) -> Batch | None:
    """Return the window with no label that counts; None where labels are no classes."""
    data = window.data
    has_labels = (isinstance(data, Mapping) and LABELS in data) or (
        isinstance(data, (tuple, list)) and len(data) > 1
    )
    if not has_labels or not isinstance(labels := labels_of(data), Tensor) or labels.is_floating_point():
        return None
    ignored = torch.full_like(labels, IGNORE_INDEX)
    if isinstance(data, Mapping):
        return Batch.of({**data, LABELS: ignored}, window.ids)
    return Batch.of((*data[:-1], ignored), window.ids)


def _moved(step: Step, before: dict[str, Any]) -> dict[str, float]:
    """Return what a skipped window has changed, but for what counts windows and for the scale of the loss."""
    differences = compare.differences(step.state_dict(), before)
    return {path: error for path, error in differences.items() if _is_learned(path, step)}


def _is_learned(path: str, step: Step) -> bool:
    """Return whether it is part of what is learned.

    The rate of the next update, the counts of windows, what was found out about padding and inputs, and the
    scale are not.
    """
    scales = [name for name, state in step.seams.states.items() if state is step.seams.scale]
    aside = (
        "/progress/windows",
        "/progress/skipped",
        "/progress/examples",
        "/padding",
        "/inputs",
        *(f"/techniques/{name}/" for name in scales),
    )
    return not path.startswith(aside) and not path.endswith(("/lr", "/momentum", "/betas/0"))
