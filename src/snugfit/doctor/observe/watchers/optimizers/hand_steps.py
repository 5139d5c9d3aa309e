"""Weights that a script moves itself, without an optimizer: whether it clears their gradients before the next ones."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import leaves_of
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.optimizers.gradient_state import summable

MOST_PASSES = 64
_CLEAR = "with torch.no_grad():\n    weight -= rate * weight.grad\n    weight.grad.zero_()   # or weight.grad = None"


class _Left(NamedTuple):
    """A weight, and fingerprints of it and of its gradient, as a backward pass has left them."""

    weight: weakref.ref[Tensor]
    value: float
    gradient: float


class HandSteps:
    """Sees, of the first backward passes of a script without an optimizer, those that add to gradients by which the weights were moved."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._left: dict[int, _Left] = {}
        self._leaves: list[Tensor] = []
        self._passes = 0

    def before(self, loss: Tensor) -> None:
        """Look at the weights that a loss is about to be differentiated by."""
        if self._recorder.optimizers or self._passes >= MOST_PASSES:
            return
        self._passes += 1
        self._leaves = [each for each in leaves_of(loss).values() if each.requires_grad and each.numel()]
        moved = [each for each in self._leaves if self._is_moved(each)]
        if moved and all(self._keeps_gradient(each) for each in moved):
            what = "The gradients by which the script has moved its weights are still there, and the next ones are added to them."
            self._recorder.add(
                Fault(where(), self._recorder.log.updates, "zero_grad", what, _CLEAR, 3, certain=True)
            )

    def after(self) -> None:
        """Remember the weights and their gradients after a backward pass."""
        leaves, self._leaves = self._leaves, []
        for each in leaves:
            if each.grad is not None and not each.grad.is_sparse:
                self._left[id(each)] = _Left(weakref.ref(each), _fingerprint(each), _fingerprint(each.grad))

    def _known(self, weight: Tensor) -> _Left | None:
        left = self._left.get(id(weight))
        return left if left is not None and left.weight() is weight else None

    def _is_moved(self, weight: Tensor) -> bool:
        left = self._known(weight)
        return left is not None and left.value != _fingerprint(weight)

    def _keeps_gradient(self, weight: Tensor) -> bool:
        left, gradient = self._known(weight), weight.grad
        is_same = left is not None and gradient is not None and left.gradient == _fingerprint(gradient)
        return is_same and gradient is not None and bool(gradient.count_nonzero())


def _fingerprint(values: Tensor) -> float:
    """Return a number that changes with any of the values."""
    flat = summable(values).reshape(-1).abs().to(torch.float64)
    return float(flat @ torch.linspace(1, 2, len(flat), dtype=torch.float64, device=flat.device))
