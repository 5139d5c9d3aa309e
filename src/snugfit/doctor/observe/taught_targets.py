"""Targets that another network gives and that the same optimizer trains, by nothing but the loss that compares with them: a teacher that follows its pupil."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from snugfit.doctor.observe.graph_nodes import leaves_of
from snugfit.doctor.observe.run_events import Fault
from snugfit.doctor.observe.watchers.watch_log import Recorder, where

LEAST_WEIGHTS, MOST_NODES, MOST_PENDING, LEAST_PASSES = 2, 4000, 32, 3
LOSSES = ("kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class _Target(NamedTuple):
    """The node that gave the targets of a loss, the weights behind them, and the line of the loss."""

    node: Any
    weights: frozenset[int]
    at: str


class TaughtTargets:
    """The targets with a graph that losses got since the last backward pass, of a network of which the predictions have no weight."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: list[_Target] = []

    def note(self, name: str, predictions: Tensor, targets: Tensor) -> None:
        """Note what a loss gets, in the first updates; a table of centres, which is one weight, is learned so on purpose."""
        looked = self._recorder.detailed and name in LOSSES and len(self._pending) < MOST_PENDING
        if not looked or targets.grad_fn is None or predictions.grad_fn is None:
            return
        own, taught = (
            {id(leaf): leaf for leaf in leaves_of(each).values() if isinstance(leaf, nn.Parameter)}
            for each in (predictions, targets)
        )
        if own and len(taught) >= LEAST_WEIGHTS and own.keys().isdisjoint(taught):
            numbers = {self._recorder.number(each) for each in (*own.values(), *taught.values())}
            if any(numbers <= set(each.parameters) for each in self._recorder.optimizers.values()):
                self._pending.append(_Target(targets.grad_fn, frozenset(taught), where()))

    def differentiated(self, value: Tensor) -> None:
        """Look, before a backward pass, at whether anything else in the graph of a value trains what gave the targets."""
        pending, self._pending = self._pending, []
        for target in pending:
            others = _weights_past(value.grad_fn, target.node)
            if others is not None and others.isdisjoint(target.weights):
                what = "The targets come of another network, which the same optimizer trains, and nothing but this loss: it learns to give what it is compared with."
                fix = "with torch.no_grad():\n    targets = teacher(inputs)   # and its parameters in no optimizer"
                update = self._recorder.log.updates
                self._recorder.add(Fault(target.at, update, "target_gradients", what, fix, LEAST_PASSES))


def _weights_past(node: Any, without: Any) -> set[int] | None:
    """Return the leaves of a graph that are reached without a node; None where that node is not in it, or it is too large."""
    todo, seen, weights, met = [node], set[Any](), set[int](), False
    while todo:
        each = todo.pop()
        if each is without:
            met = True
            continue
        if each is None or each in seen:
            continue
        if len(seen) >= MOST_NODES:
            return None
        seen.add(each)
        leaf = getattr(each, "variable", None)
        if leaf is not None:
            weights.add(id(leaf))
        todo += [below for below, _ in each.next_functions]
    return weights if met else None
