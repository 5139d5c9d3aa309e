"""Watch divergences of one choice among classes from another that are divided by the classes too, beside other terms of a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.internals import number_beside
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_SEEN, MOST_NODES, MOST_LOSSES = 3, 64, 8
_SLACK = 1e-3
_PASSED = ("Mul", "Div", "Neg", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Mean", "Sum")


class DivergenceWatch(Companion):
    """A watcher of `kl_div` whose mean is taken over rows and classes alike, in the first updates.

    A divergence is a sum over the classes. Alone it is but scaled; beside another term it weighs less than it was told to, by the number of classes.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: list[tuple[Any, int, str]] = []

    def lost(self, loss: LossCall) -> None:
        if loss.name != "kl_div" or loss.options.get("reduction", "mean") != "mean":
            return
        classes = _classes_of(loss.target, logarithms=bool(loss.options.get("log_target")))
        if classes > 1:
            self._seen = [*self._seen[1 - MOST_LOSSES :], (loss.result.grad_fn, classes, where())]

    def differentiated(self, value: Tensor) -> None:
        seen, self._seen = self._seen, []
        for node, classes, at in seen:
            if _is_beside_others(value.grad_fn, node, classes):
                what = (
                    f"kl_div takes the mean over the {classes} classes too, where a divergence is their sum: beside the other terms of the loss it "
                    f"weighs 1/{classes} of what was set."
                )
                fix = 'F.kl_div(log_probabilities, targets, reduction="batchmean")'
                self._recorder.add(Fault(at, self._recorder.log.updates, "loss_terms", what, fix, LEAST_SEEN))


def _classes_of(target: Tensor, *, logarithms: bool) -> int:
    """Return over how many classes the probabilities of each row come to 1; 0 where they do over no axis behind the first."""
    shares = target.detach().float()
    shares = shares.exp() if logarithms else shares
    for axis in range(1, shares.dim()):
        total = shares.sum(axis)
        if torch.allclose(total, torch.ones_like(total), atol=_SLACK):
            return shares.shape[axis]
    return 0


def _is_beside_others(end: Any, node: Any, classes: int) -> bool:
    """Return whether a node is one of several terms of a value, and not multiplied by the number of classes."""
    todo, joined, is_term = [(end, False)], False, False
    for _ in range(MOST_NODES):
        if not todo:
            break
        each, by_classes = todo.pop()
        if each is None:
            continue
        if each is node:
            is_term = not by_classes
            continue
        kind, parts = kind_of(each), [part for part, _ in each.next_functions if part is not None]
        if kind in ("Add", "Sub", "Stack", "Cat"):
            joined = joined or len(parts) > 1
            todo += [(part, by_classes) for part in parts]
        elif kind.startswith(_PASSED) and len(parts) == 1:
            number = number_beside(each) if kind in ("Mul", "Div") else 0
            todo.append((parts[0], by_classes or (bool(number) and abs(number - classes) < _SLACK)))
    return joined and is_term
