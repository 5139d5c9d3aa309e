"""Watch what is taken for classes and stands for none: raw scores that are rounded, and the best of one column."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.scores.truth_orders import OrderWatch

LEAST_ROWS = 32
_BY_BOUNDS = ("average_precision_score", "roc_auc_score")
"""Scores of scikit-learn that are areas under a curve, with a point for each bound of what is predicted."""


class TakenClasses:
    """The last tensors that a script took for classes, each with the line at which it did; they are not kept."""

    def __init__(self, recorder: Recorder, orders: OrderWatch) -> None:
        self._recorder = recorder
        self.orders = orders
        self._rounded: tuple[weakref.ref[Tensor], str] | None = None
        self._alone: tuple[weakref.ref[Tensor], str] | None = None
        self.alone_at = ""
        """Where the best of one column was last taken."""

    def waits_for(self, one: Any) -> bool:
        """Return whether there is something to compare with."""
        if self._rounded is not None or self._alone is not None:
            return True
        return isinstance(one, Tensor) and one.dim() == 1 and self.orders.waits_for(len(one))

    def note_best(self, best: Any, scores: Tensor, axis: Any) -> None:
        """Note the places of the largest over an axis of one, all of which are 0; several rows of scores have two axes."""
        places = best if isinstance(best, Tensor) else getattr(best, "indices", None)
        if not isinstance(axis, int) or not isinstance(places, Tensor) or scores.dim() != 2:
            return
        if scores.shape[axis] == 1 < scores.shape[axis - 1]:
            self.alone_at = where()
            self._alone = (weakref.ref(places), self.alone_at)

    def note_rounded(self, rounded: Any, scores: Any) -> None:
        """Note raw scores, of the kind that a binary loss with logits gets, that are rounded."""
        raw = (
            isinstance(scores, Tensor) and scores.dim() > 0 and scores.shape[1:] in self._recorder.raw_scores
        )
        if raw and isinstance(rounded, Tensor) and self._recorder.active:
            self._rounded = (weakref.ref(rounded), where())

    def compared(self, one: Any, other: Any) -> None:
        """Look at what is compared for equality: classes of the one kind or the other with those that are right, and all rows of a pass."""
        rows = isinstance(one, Tensor) and isinstance(other, Tensor) and one.dim() == 1
        if rows and one.shape == other.shape and self.orders.waits_for(len(one)) and self._recorder.active:
            for pair in ((one, other), (other, one)):
                self.orders.compared(*(each.detach().tolist() for each in pair))
        for known in (self._rounded, self._alone):
            taken = None if known is None else known[0]()
            if known is None or taken is None or not (taken is one or taken is other):
                continue
            right = other if taken is one else one
            if not isinstance(right, Tensor) or right.numel() != taken.numel() or not self._recorder.active:
                continue
            if known is self._rounded:
                self._look_at_rounded(taken, right, known[1])
            elif bool((right != 0).any()):
                self._add_alone(known[1])

    def scored(self, function: str, right: Any, predicted: Any) -> None:
        """Look at what a function of scikit-learn gets: the best of one column, which are all 0, and classes where it goes through all bounds of a score."""
        by_bounds = function in _BY_BOUNDS and bool(self._recorder.log.updates)
        looked = self.alone_at or by_bounds or self.orders.waits_for(len(right))
        given = [_numbers_of(each) for each in (right, predicted)] if looked else []
        if not given or len(given[0]) != len(given[1]) or not any(given[0]):
            return
        rows = len(given[0])
        self.orders.compared(*given)
        if self.alone_at and rows > 1 and not any(given[1]):
            self._add_alone(self.alone_at)
        elif by_bounds and rows >= LEAST_ROWS and set(given[1]) == {0, 1} == set(given[0]):
            what = (
                f"{function} goes through all bounds of a score, and the {rows} predictions that it gets are 0 or 1 already: it is that of one bound, "
                "and says nothing of the order in which the model puts the rows."
            )
            fix = f"{function}(labels, torch.sigmoid(scores))   # the score, before it is compared with 0.5"
            self._recorder.add(Fault(where(), self._recorder.log.updates, "wrong_scores", what, fix))

    def _look_at_rounded(self, rounded: Tensor, right: Tensor, at: str) -> None:
        values = rounded.detach()
        beyond = float(((values != 0) & (values != 1)).float().mean())
        if beyond and bool(((right == 0) | (right == 1)).all()):
            what = f"Raw scores are rounded, which gives {float(values.min()):g} to {float(values.max()):g}; {beyond:.0%} of them are neither 0 nor 1, as the labels are."
            fix = "predicted = torch.round(torch.sigmoid(scores))   # or (scores > 0).float()"
            self._recorder.add(Fault(at, self._recorder.log.updates, "wrong_scores", what, fix))

    def _add_alone(self, at: str) -> None:
        what = "the best of one column is always number 0, and is compared with labels of other classes too"
        fix = "predicted = (torch.sigmoid(scores) > 0.5).long()   # one score for each row; or two outputs and cross_entropy"
        self._recorder.add(WrongAxis(at, self._recorder.log.updates, "argmax of one column", what, fix))


def watch_rounded(taken: TakenClasses, recorder: Recorder, patches: Patches) -> None:
    """Note raw scores that are rounded."""

    def rounding(original: Callable[..., Any]) -> Callable[..., Any]:
        def round(input: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(input, *args, **kwargs)
            looked = recorder.raw_scores and not (recorder.looking or torch.compiler.is_dynamo_compiling())
            if looked and recorder.here:
                with recorder.guard():
                    taken.note_rounded(result, input)
            return result

        return round

    in_c = torch.round
    patches.wrap(torch, "round", rounding)
    script_as(torch.round, in_c)
    patches.wrap(Tensor, "round", rounding)


def _numbers_of(classes: Any) -> list[Any]:
    """Return the numbers of a flat list or array; none of what is neither."""
    listed = classes.tolist() if hasattr(classes, "dtype") and hasattr(classes, "tolist") else classes
    flat = isinstance(listed, list) and all(isinstance(each, int | float) for each in listed)
    return listed if flat else []
