"""Watch the graphs of passes in evaluation mode: whether anything is differentiated through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.run_events import GraphUnused
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

MOST = 256
"""Passes that are looked at, of the first ones."""


@dataclass
class _Pass:
    """A pass in evaluation mode whose output has a graph; `used` once a gradient comes through that."""

    at: str
    update: int
    model: int
    rows: int
    place: int
    used: bool = False


class EvaluationGraphs:
    """The graphs that models in evaluation mode have recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._passes: list[_Pass] = []

    def note(self, model: int, outputs: Iterable[Tensor], rows: int) -> None:
        """Note what a model in evaluation mode gave."""
        node = next((each.grad_fn for each in outputs if each.grad_fn is not None), None)
        if node is not None and len(self._passes) < MOST:
            made = _Pass(where(), self._recorder.log.updates, model, rows, len(self._recorder.log.events))
            node.register_prehook(partial(self._use, made))
            self._passes.append(made)

    def _use(self, made: _Pass, _gradients: Any) -> None:
        """Note a gradient that is none of the observer's own: a hook of the graph's last node, which changes nothing."""
        made.used = made.used or not self._recorder.looking

    def finish(self) -> None:
        """Say of which passes the graphs were not used: at lines whose graphs never are."""
        used = {each.at for each in self._passes if each.used}
        for each in self._passes:
            if each.at not in used:
                self._recorder.add(GraphUnused(each.at, each.update, each.model, each.rows, each.place))
