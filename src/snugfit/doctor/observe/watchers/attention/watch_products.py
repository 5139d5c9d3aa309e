"""Watch products of weights that a softmax gave, such as those of attention: its axis, and whether a mask has changed them behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.events.term_events import MaskedWeights
from snugfit.doctor.observe.graphs.graph_nodes import line_of, masked_softmax, softmax_of_products
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import axis_of_softmax, script_as, size_of_result
from snugfit.doctor.observe.recording.own_calls import is_looked_at
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.attention.watch_squashes import weights_over_rows

_Call = Callable[..., Any]
_SLACK = 1e-3


def watch_products(recorder: Recorder, patches: Patches) -> None:
    """Record products whose first factor is weights that do not come to 1 where they are summed up, in the first updates."""

    def watched(one: Any) -> bool:
        return isinstance(one, Tensor) and is_looked_at(recorder, frames=2)

    def multiplying(original: _Call) -> _Call:
        def multiply(one: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if watched(one):
                with recorder.guard():
                    if one.requires_grad and recorder.active:
                        _look_at_mask(recorder, one)
                        _look_at_axis(recorder, one, one.dim() - 1)
                        _look_at_rows(recorder, one, other)
            return original(one, other, *args, **kwargs)

        return multiply

    def contracting(original: _Call) -> _Call:
        def einsum(equation: Any, *operands: Any) -> Any:
            if isinstance(equation, str) and operands and watched(operands[0]):
                with recorder.guard():
                    for number, each in enumerate(operands):
                        if isinstance(each, Tensor) and each.requires_grad and recorder.active:
                            _look_at_axis(recorder, each, *_summed_axes(equation, number))
            return original(equation, *operands)

        return einsum

    for name in ("matmul", "bmm"):
        in_c = getattr(torch, name)
        patches.wrap(torch, name, multiplying)
        script_as(getattr(torch, name), in_c)
    for name in ("__matmul__", "matmul", "bmm"):
        patches.wrap(Tensor, name, multiplying)
    patches.wrap(torch, "einsum", contracting)


def _summed_axes(equation: str, number: int) -> list[int]:
    """Return the axes of an operand that a product sums over.

    >>> _summed_axes("bhqk, bhkd -> bhqd", 0), _summed_axes("b...i,...ij->b...j", 0)
    ([3], [])
    """
    given, arrow, result = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        return []
    return [axis for axis, letter in enumerate(given.split(",")[number]) if letter not in result]


def _look_at_axis(recorder: Recorder, weights: Tensor, *summed: int) -> None:
    """Note weights of attention that come to 1 over another axis than those over which they are summed up."""
    if not summed or weights.dim() < 2:
        return
    softmax = softmax_of_products(weights.grad_fn)
    axis = None if softmax is None else axis_of_softmax(softmax)
    if axis is None or size_of_result(softmax) != tuple(weights.shape) or axis in summed:
        return
    what = (
        f"weights of {list(weights.shape)} come to 1 over axis {axis}, and are summed up over axis {summed[0]}: "
        "each place gets a sum of values whose weights come to anything"
    )
    at, update = line_of(softmax) or where(), recorder.log.updates
    recorder.add(WrongAxis(at, update, "attention", what, "weights = scores.softmax(dim=-1)"))


def _look_at_rows(recorder: Recorder, weights: Tensor, values: Any) -> None:
    """Note weights that come to 1 over the rows of a batch, each of which is multiplied by values of its own."""
    both = isinstance(values, Tensor) and weights.dim() == values.dim() == 3
    at, rows = weights_over_rows(weights.grad_fn) if both else ("", 0)
    if at and len(weights) == len(values) == rows:
        what = f"weights of {list(weights.shape)} come to 1 over the {rows} rows of the batch, and each row takes a sum of its own values by them"
        fix = "weights = scores.softmax(dim=-1)"
        recorder.add(WrongAxis(at, recorder.log.updates, "attention over the rows", what, fix))


def _look_at_mask(recorder: Recorder, weights: Tensor) -> None:
    """Note weights that no longer come to 1, unless the largest of each place is kept, as where a router chooses experts."""
    given = masked_softmax(weights.grad_fn) if weights.dim() > 2 else None
    if given is None or given.shape[-1] != weights.shape[-1] or given.numel() != weights.numel():
        return
    after, before = (each.detach().float().reshape(-1, weights.shape[-1]) for each in (weights, given))
    sums = after.sum(-1)
    partial = (sums > _SLACK) & (sums < 1 - _SLACK)
    if bool((after.argmax(1) != before.argmax(1))[partial].any()):
        recorder.add(MaskedWeights(where(), recorder.log.updates, float(sums[partial].min())))
