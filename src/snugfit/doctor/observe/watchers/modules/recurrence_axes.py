"""Watch recurrent layers that are told that the rows come first, and get them on the second axis."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.recording.companions import Companion, ModuleOutput
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_ROWS = LEAST_PASSES = 3


class RecurrenceWatch(Companion):
    """A watcher of layers with `batch_first=True` whose second axis is that of the model's rows, pass after pass, and whose first axis has nothing of them.

    One that a model calls several times in a pass, as for each of its rows, may have any axes; so may one whose first axis is a multiple of the rows.

    Args:
        rows: how many rows the model was given, and how many a loader has handed out for it; 0 where that is not known.
    """

    def __init__(self, recorder: Recorder, rows: Callable[[], tuple[int, int]]) -> None:
        self._recorder, self._rows = recorder, rows
        self._calls: dict[int, list[tuple[str, str, torch.Size]]] = {}
        self._seen: dict[int, list[tuple[int, int]]] = {}
        self._other: set[int] = set()

    def ended(self, given: ModuleOutput) -> None:
        """Note the axes of a layer's output, and judge those of a whole pass."""
        module, output = given.module, given.output
        recurs = isinstance(module, nn.RNNBase) and module.batch_first and isinstance(output, tuple)
        hidden = output[0] if recurs else None
        if isinstance(hidden, Tensor) and hidden.dim() == 3:
            calls = self._calls.setdefault(self._recorder.number(module), [])
            calls.append((type(module).__name__, where(), hidden.shape))
        if given.outermost:
            for number, calls in self._calls.items():
                self._judge(number, calls)
            self._calls = {}

    def _judge(self, number: int, calls: list[tuple[str, str, torch.Size]]) -> None:
        (kind, at, shape), (rows, drawn) = calls[0], self._rows()
        first, second = shape[0], shape[1]
        exchanged = rows == drawn == second >= LEAST_ROWS and first > 1 and first % rows
        if len(calls) > 1 or not exchanged:
            self._other.add(number)
        if number in self._other:
            return
        seen = self._seen.setdefault(number, [])
        seen.append((first, rows))
        one_length, sizes = len({each for each, _ in seen}) == 1, len({each for _, each in seen})
        if len(seen) == LEAST_PASSES and (one_length or sizes > 1):
            what = f"it takes the first axis of {list(shape)} for the rows, of which there are {rows}, on the second: the state runs from row to row"
            fix = f"nn.{kind}(...)   # without batch_first=True, where the time comes first; or x.transpose(0, 1)"
            self._recorder.add(WrongAxis(at, self._recorder.log.updates, kind, what, fix))
