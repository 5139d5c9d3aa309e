"""Watch what a value of each row is added to: advantages of its actions, less their mean, which is that of the row and not of the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import averages_rows, size_of_result
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_SEEN = 2
_CENTRED = "snugfit centred over rows"
_Size = tuple[int, ...]


class BaselineWatch:
    """A watcher of sums of one value for each row and of several less a mean that is taken over all rows."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def install(self, patches: Patches) -> None:
        subtracting, adding = (
            after_own_calls(self._recorder, each, inside=True) for each in (self._subtracted, self._added)
        )
        for name in ("__sub__", "sub"):
            patches.wrap(Tensor, name, subtracting)
        for name in ("__add__", "__radd__", "add"):
            patches.wrap(Tensor, name, adding)

    def _subtracted(self, _: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        one, other = (*args, *kwargs.values())[:2]
        if not isinstance(other, Tensor) or result.dim() < 2 or other.numel() >= result.numel():
            return
        values = _averaged_by(other.grad_fn)
        if values is None or not isinstance(one, Tensor):
            return
        size = size_of_result(values)
        metadata: Any = getattr(result.grad_fn, "metadata", None)
        if one.grad_fn is values and metadata is not None:
            metadata[_CENTRED] = where(), size
        elif kind_of(one.grad_fn) == "Add":
            parts = [each for each, _ in one.grad_fn.next_functions] if one.grad_fn is not None else []
            others = [each for each in parts if each is not values]
            if len(others) == 1 < len(parts) and kind_of(others[0]) != "AccumulateGrad":
                self._judge(size, size_of_result(others[0]), where())

    def _added(self, _: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Tensor) -> None:
        sides = [each for each in (*args, *kwargs.values())[:2] if isinstance(each, Tensor)]
        if result.dim() < 2 or len(sides) < 2:
            return
        for one, other in (sides, sides[::-1]):
            line, size = (getattr(one.grad_fn, "metadata", None) or {}).get(_CENTRED, ("", ()))
            if line and other.grad_fn is not None:
                self._judge(size, tuple(other.shape), line)

    def _judge(self, values: _Size, value: _Size, line: str) -> None:
        if not is_for_each_row(values, value):
            return
        what = (
            f"A value for each of {values[0]} rows is added to {values[1]} of that row less a mean, and that is taken over the rows of the batch too: "
            "what a row gets depends on the others."
        )
        fix = "value + advantage - advantage.mean(dim=1, keepdim=True)"
        update = self._recorder.log.updates
        self._recorder.add(Fault(line, update, "wrong_axis", what, fix, LEAST_SEEN))


def _averaged_by(node: Any) -> Any:
    """Return the node whose values one averages over all of their axes, or over that of the rows; None where it does not.

    >>> import torch
    >>> values = torch.ones(4, 3, requires_grad=True).exp()
    >>> means = values.mean(), values.mean(0, keepdim=True), values.mean(1, keepdim=True), values.sum()
    >>> [_averaged_by(each.grad_fn) is values.grad_fn for each in means]
    [True, True, False, False]
    """
    if not kind_of(node).startswith("Mean"):
        return None
    below = node.next_functions[0][0]
    of_all = getattr(node, "_saved_dim", None) is None
    return below if below is not None and (of_all or averages_rows(node)) else None


def is_for_each_row(values: _Size, value: _Size) -> bool:
    """Return whether of two sizes the second is that of one value for each row that the first has several of.

    >>> sizes = ((8, 3), (8, 1)), ((8, 3, 5), (8, 1, 5)), ((8, 3), (1, 3)), ((8, 3), (8, 3)), ((1, 3), (1, 1)), ((8, 1), (8, 1))
    >>> [is_for_each_row(*each) for each in sizes]
    [True, True, False, False, False, False]
    """
    if len(values) != len(value) or len(values) < 2 or not 1 < values[0] == value[0]:
        return False
    wider = [many for many, one in zip(values, value, strict=True) if many != one]
    return len(wider) == 1 and all(one in (many, 1) for many, one in zip(values, value, strict=True))
