"""States of recurrent layers that come from other rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from snugfit.doctor.observe.events.script_events import StaleState
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where


class StaleStates:
    """The storage of the last state that each recurrent layer gave, and the batch that it belongs to.

    A weak reference, not an address: zeros that are made anew often lie where the last state did.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[int, tuple[StorageWeakRef, int]] = {}
        self.batch = 0

    def before(self, layer: nn.RNNBase, args: tuple[Any, ...]) -> None:
        """Note a state that a layer gave for an earlier batch of rows that were drawn at random."""
        last, state = self._last.get(self._recorder.number(layer)), _first(args[1] if len(args) > 1 else None)
        if last is None or state is None or last[0] != StorageWeakRef(state.untyped_storage()):
            return
        if not bool(state.any()):  # the script set it back to zeros in place
            return
        if last[1] and self.batch and last[1] != self.batch:
            self._recorder.add(StaleState(where(), self._recorder.log.updates, type(layer).__name__))

    def after(self, layer: nn.RNNBase, output: Any) -> None:
        """Remember the state that a layer gave."""
        state = _first(output[1]) if isinstance(output, tuple) and len(output) == 2 else None
        if state is not None:
            storage = StorageWeakRef(state.untyped_storage())
            self._last[self._recorder.number(layer)] = storage, self.batch


def _first(state: Any) -> Tensor | None:
    state = state[0] if isinstance(state, tuple) and state else state
    return state if isinstance(state, Tensor) else None
