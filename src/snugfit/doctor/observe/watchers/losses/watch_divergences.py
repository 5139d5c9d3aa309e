"""Watch divergences of one choice among classes from another that weigh less than they were told to, beside other terms of a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.graphs.loss_graph import terms_of
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.internals import number_beside
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_SEEN, MOST_NODES, MOST_LOSSES = 3, 64, 8
_SLACK = 1e-3
SOFT = 3.0
"""Temperature from which on gradients that it divides by its square are lost beside those of a term of as much weight."""
_PASSED = ("Mul", "Div", "Neg", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Mean", "Sum")


class DivergenceWatch(Companion):
    """A watcher of `kl_div` whose mean is taken over rows and classes alike, and of softened scores without the square of their temperature.

    A divergence is a sum over the classes, and its gradients are over the square of the temperature. Alone it is but scaled; beside another term it
    weighs less than it was told to. By what it is to be multiplied can be told where its weight and the other one come to 1.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: list[tuple[Any, int, str]] = []
        self._softened: list[tuple[Any, int, float, str]] = []

    def lost(self, loss: LossCall) -> None:
        temperature = _temperature_of(loss.scores.grad_fn)
        soft = loss.name == "kl_div" or (loss.name == "cross_entropy" and loss.target.is_floating_point())
        if soft and temperature >= SOFT and loss.result.dim() == 0:
            rows = len(loss.scores) if loss.options.get("reduction") == "sum" else 1
            seen = (loss.result.grad_fn, rows, temperature, where())
            self._softened = [*self._softened[1 - MOST_LOSSES :], seen]
        if loss.name != "kl_div" or loss.options.get("reduction", "mean") != "mean":
            return
        classes = _classes_of(loss.target, logarithms=bool(loss.options.get("log_target")))
        if classes > 1:
            self._seen = [*self._seen[1 - MOST_LOSSES :], (loss.result.grad_fn, classes, where())]

    def differentiated(self, value: Tensor) -> None:
        seen, self._seen = self._seen, []
        softened, self._softened = self._softened, []
        for node, rows, temperature, at in softened:
            weight = _share_beside_one(value.grad_fn, node, rows)
            if weight is not None:
                what = (
                    f"Scores are divided by a temperature of {temperature:g}, and their term is not multiplied by its square: of a weight of {weight:g} its "
                    f"gradients have {weight / temperature**2:.2g}, beside {1 - weight:g} of the other term."
                )
                fix = "loss = weight * T**2 * soft_loss + (1 - weight) * hard_loss"
                self._recorder.add(Fault(at, self._recorder.log.updates, "loss_terms", what, fix, LEAST_SEEN))
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


def _temperature_of(node: Any) -> float:
    """Return by what scores were divided last, before the logarithms of their probabilities; 0 where by nothing."""
    for _ in range(2):
        if node is not None and kind_of(node) in ("LogSoftmax", "Softmax"):
            node = node.next_functions[0][0]
    number = number_beside(node) if kind_of(node) in ("Div", "Mul") else 0.0
    return number if kind_of(node) == "Div" or not number else 1 / number


def _share_beside_one(end: Any, node: Any, rows: int) -> float | None:
    """Return the weight of a loss, a sum over so many rows, in a sum of two terms whose weights come to 1; None where they do not, or it is none of them."""
    own, terms = terms_of(node), terms_of(end)
    if len(own) != 1 or len(terms) != 2 or not own[0].factor:
        return None
    mine = [each for each in terms if each.node is own[0].node]
    others = [each for each in terms if each.node is not own[0].node]
    if len(mine) != 1 or not kind_of(others[0].node).startswith("NllLoss"):
        return None
    weight = rows * mine[0].factor / own[0].factor
    return weight if 0 < weight < 1 and abs(weight + others[0].factor - 1) < _SLACK else None


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
