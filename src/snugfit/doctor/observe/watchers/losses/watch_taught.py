"""Watch targets that carry a graph: of a model that nothing else teaches, and given in the place of the predictions."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.graph_nodes import leaves_of
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

MOST_NODES, MOST_PAIRS, LEAST_SEEN, LEAST_WEIGHTS = 5000, 8, 3, 2
_ONE_WAY = ("kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy")
"""Losses that are others where what they get is exchanged."""


class _Pair(NamedTuple):
    """A loss between two things with a graph: its node, that of the predictions, the leaves of the targets alone, and its line."""

    node: Any
    predictions: Any
    taught: dict[int, Tensor]
    at: str


class TaughtWatch(Companion):
    """A watcher of targets with a graph, and of what else their model learns from until the next step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pairs: list[_Pair] = []
        self._otherwise: set[int] = set()
        self._alone: list[_Pair] = []

    def lost(self, loss: LossCall) -> None:
        name, scores, target, result = loss.name, loss.scores, loss.target, loss.result
        if not target.requires_grad or result.grad_fn is None:
            return
        if not scores.requires_grad:
            if name in _ONE_WAY:
                what = f"{name} gets what learns as its targets, and a constant as its predictions: the two are exchanged."
                fix = f"loss = F.{name}(predictions, targets)"
                self._recorder.add(
                    Fault(
                        where(),
                        self._recorder.log.updates,
                        "wrong_scores",
                        what,
                        fix,
                        LEAST_SEEN,
                        certain=True,
                    )
                )
            return
        leaves, others = leaves_of(target), leaves_of(scores)
        # a table of centres, which is one weight, is learned so on purpose
        if (
            len(leaves) >= LEAST_WEIGHTS
            and not leaves.keys() & others.keys()
            and len(self._pairs) < MOST_PAIRS
        ):
            self._pairs.append(_Pair(result.grad_fn, scores.grad_fn, leaves, where()))

    def differentiated(self, value: Tensor) -> None:
        pairs, self._pairs = self._pairs, []
        closed = {each.node for each in pairs}
        todo, seen = [value.grad_fn, *(each.predictions for each in pairs)], set[Any]()
        used_pairs = set()
        while todo and len(seen) < MOST_NODES:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in closed:
                used_pairs.add(node)
                continue
            leaf = getattr(node, "variable", None)
            if isinstance(leaf, Tensor):
                self._otherwise.add(id(leaf))
            todo += [each for each, _ in node.next_functions]
        self._alone += [each for each in pairs if each.node in used_pairs]

    def steps(self, optimizer: Any) -> None:
        """Note targets of a model that this optimizer moves, and that learns from nothing but to be like what it teaches."""
        alone, self._alone = self._alone, []
        otherwise, self._otherwise = self._otherwise, set()
        own = {
            id(each) for group in optimizer.param_groups for each in group["params"] if group.get("lr", 1.0)
        }
        for each in alone:
            if each.taught.keys() <= own and not each.taught.keys() & otherwise:
                what = (
                    f"{type(optimizer).__name__} also moves the {len(each.taught)} parameters that the targets are computed with, "
                    "and all that these learn is to be like the predictions."
                )
                fix = "with torch.no_grad():\n    targets = teacher(inputs)\noptimizer = torch.optim.Adam(student.parameters())"
                self._recorder.add(
                    Fault(each.at, self._recorder.log.updates, "target_gradients", what, fix, LEAST_SEEN)
                )
