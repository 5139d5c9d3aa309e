"""States of recurrent layers that come from other rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from snugfit.doctor.observe.script_events import StaleState
from snugfit.doctor.observe.watchers.watch_log import Recorder, where


class StaleStates:
    """The last state that each recurrent layer gave, by its place in memory, and the batch that it belongs to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[int, tuple[int, int]] = {}
        self.batch = 0

    def before(self, layer: nn.RNNBase, args: tuple[Any, ...]) -> None:
        """Note a state that a layer gave for an earlier batch of rows that were drawn at random."""
        last, state = self._last.get(self._recorder.number(layer)), _first(args[1] if len(args) > 1 else None)
        if last is None or state is None or last[0] != state.data_ptr():
            return
        if last[1] and self.batch and last[1] != self.batch:
            self._recorder.add(StaleState(where(), self._recorder.log.updates, type(layer).__name__))

    def after(self, layer: nn.RNNBase, output: Any) -> None:
        """Remember the state that a layer gave."""
        state = _first(output[1]) if isinstance(output, tuple) and len(output) == 2 else None
        if state is not None:
            self._last[self._recorder.number(layer)] = state.data_ptr(), self.batch


def _first(state: Any) -> Tensor | None:
    state = state[0] if isinstance(state, tuple) and state else state
    return state if isinstance(state, Tensor) else None
