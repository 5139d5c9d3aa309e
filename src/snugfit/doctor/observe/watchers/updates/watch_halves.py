"""Watch gradients that are computed in float16, and whether the loss was multiplied so that small ones do not vanish."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.companions import Companion
from snugfit.doctor.observe.recording.internals import is_half, number_beside
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Gradients

MOST_NODES, MOST_FACTORS, LEAST_SEEN = 400, 6, 3
LEAST_SCALE = 8.0
"""A loss that is multiplied by less was weighed; by more, its gradients were kept from vanishing."""
LEAST_HELD = float(torch.finfo(torch.float16).tiny)
"""Below it float16 holds fewer and fewer bits."""
_PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Convolution", "MkldnnConvolution", "CudnnConvolution")


class HalfWatch(Companion):
    """A watcher of layers that are differentiated in float16 by a loss that nothing has multiplied, until a loss scale is seen."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder, self._gradients = recorder, gradients
        self._scaled = False
        self._at = ""

    def differentiated(self, value: Tensor) -> None:
        self._at = ""
        factor, _ = self._gradients.scale_of(value)
        self._scaled = self._scaled or factor != 1.0 or _factor(value.grad_fn) >= LEAST_SCALE
        if not self._scaled and _has_half(value.grad_fn):
            self._at = where()

    def steps(self, optimizer: Any) -> None:
        at, self._at = self._at, ""
        given = [each.grad for group in optimizer.param_groups for each in group["params"]]
        gradients = [each.detach() for each in given if each is not None and not each.is_sparse]
        if not at or not gradients:
            return
        small = sum(int((each.abs() < LEAST_HELD).sum()) for each in gradients)
        whole = sum(each.numel() for each in gradients)
        what = (
            f"Gradients are computed in float16, and the loss is not scaled: what is below {LEAST_HELD:.0e} is not held in full there, and vanishes. Of the "
            f"first {whole} gradients {small / whole:.0%} are."
        )
        fix = (
            "scaler = torch.amp.GradScaler()\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()\n"
            "# or torch.autocast(device, torch.bfloat16), which needs none"
        )
        self._recorder.add(Fault(at, self._recorder.log.updates, "unscaled_half", what, fix, LEAST_SEEN))


def _factor(node: Any) -> float:
    """Return the product of the numbers by which a value was multiplied last."""
    factor = 1.0
    for _ in range(MOST_FACTORS):
        following = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        number = number_beside(node) if kind_of(node).startswith(("Div", "Mul", "ToCopy")) else 0.0
        if len(following) != 1 or not (number or kind_of(node).startswith("ToCopy")):
            break
        if kind_of(node).startswith("Mul"):
            factor *= number
        node = following[0]
    return factor


def _has_half(node: Any) -> bool:
    """Return whether a product of layers, among the first that a graph has, was computed in float16."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_NODES:
        each = todo.pop(0)
        if each is None or each in seen:
            continue
        seen.add(each)
        if kind_of(each).startswith(_PRODUCTS) and is_half(each):
            return True
        todo += [below for below, _ in each.next_functions]
    return False
