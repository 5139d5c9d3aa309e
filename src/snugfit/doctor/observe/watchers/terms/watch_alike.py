"""Watch things that are compared with themselves: a term of a loss that is nothing, whatever the model gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.loss_graph import addends_of, sums_in
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import innermost, line_in, where
from snugfit.doctor.observe.source.lost_terms import line_of_setting

_NOTHING = "snugfit nothing"
LEAST_SEEN, MOST_NUMBERS, MOST_HELD = 3, 4_000_000, 8
_SLACK = 1e-6


class AlikeWatch(Companion):
    """A watcher of comparisons whose two sides are the same numbers, of which a term of what is differentiated is made.

    A model and a copy of it are alike until the first update: what was seen to differ once, at a line, is no such comparison.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._constant = self._caused_at = ""
        self._alike: list[tuple[Any, str]] = []
        self._apart: set[str] = set()

    def constant(self, loss: LossCall) -> None:
        self.note(loss.scores, _as_scores(loss), loss.scores)

    def lost(self, loss: LossCall) -> None:
        if loss.name != "kl_div" or not loss.scores.requires_grad or not loss.target.requires_grad:
            return
        at = where()
        if not _are_same(loss.scores, _as_scores(loss)):
            self._apart.add(at)
        elif at not in self._apart:
            self._alike = [*self._alike[1 - MOST_HELD :], (loss.result.grad_fn, at)]

    def note(self, one: Tensor, other: Tensor, named: Tensor | None = None) -> None:
        """Note a comparison, where a graph would be kept, of two things that have none; `named` is what should be of the model, as the script has it."""
        if one.shape != other.shape or not 1 < one.numel() <= MOST_NUMBERS or not one.is_floating_point():
            return
        at = where()
        if not _are_same(one, other):
            self._apart.add(at)
        elif at not in self._apart and bool(one.min() < one.max()):  # else a mask, or what is empty as yet
            self._constant, self._caused_at = at, _line_of(named) or at

    def note_sum(self, total: Tensor, constant: Any) -> None:
        """Keep with a sum that nothing was added to it, where things without a graph were compared with themselves before."""
        metadata = getattr(total.grad_fn, "metadata", None)
        if self._constant and metadata is not None and isinstance(constant, Tensor) and not float(constant):
            metadata[_NOTHING] = self._constant, self._caused_at

    def differentiated(self, value: Tensor) -> None:
        alike, self._alike, self._constant = self._alike, [], ""
        for node in sums_in(value.grad_fn):
            compared_at, at = (getattr(node, "metadata", None) or {}).get(_NOTHING, ("", ""))
            if compared_at and compared_at not in self._apart:
                what = "What is compared is the same on both sides, and neither has a graph: the term of the loss is 0, whatever the model gives."
                self._add(at, what)
        addends = addends_of(value.grad_fn) if alike else []
        for node, at in alike:
            own = {node, *addends_of(node)}
            if any(each not in own for each in addends) and any(each in own for each in addends):
                what = "What the model gives is compared with itself: the term of the loss is 0 and has no gradient, whatever that is."
                self._add(at, what)

    def _add(self, at: str, what: str) -> None:
        fix = "loss = F.kl_div(F.log_softmax(student / T, dim=-1), F.softmax(teacher / T, dim=-1), reduction='batchmean') * T**2"
        self._recorder.add(
            Fault(at, self._recorder.log.updates, "constant_term", what, fix, LEAST_SEEN, certain=True)
        )


def _line_of(named: Tensor | None) -> str:
    """Return the line that last set the name which the script has for this where it compares it; "" without."""
    frame = innermost()
    names = [] if frame is None else [name for name, each in list(frame.f_locals.items()) if each is named]
    if frame is None or named is None or not names:
        return ""
    line = line_of_setting(frame.f_code.co_filename, frame.f_lineno, names[0])
    return line_in(frame, line) if line else ""


def _as_scores(loss: LossCall) -> Tensor:
    """Return the targets of a loss as what would be like them: the logarithms of probabilities."""
    logarithms = loss.name != "kl_div" or loss.options.get("log_target") or not loss.target.numel()
    target = loss.target.detach()
    return target if logarithms or not target.is_floating_point() else target.log()


def _are_same(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach(), other.detach()
    return torch.equal(one, other) or (
        one.dtype == other.dtype and torch.allclose(one, other, rtol=_SLACK, atol=_SLACK)
    )
