"""Watch the order in which rows are drawn and predicted without a graph: what is right for them comes in the same one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import Batch
from snugfit.doctor.observe.recording.companions import Companion
from snugfit.doctor.observe.recording.recorder import Recorder

MOST_ROWS, LEAST_ROWS = 100_000, 16
CLOSE, HALF = 1e-4, 0.5
"""Between a score and what was predicted of it, which may have gone through other kinds of numbers."""


class OrderWatch(Companion):
    """A watcher of the labels that a shuffling loader hands out to be predicted, and of what is predicted for them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._labels: deque[float] = deque(maxlen=MOST_ROWS)
        self._predicted: deque[float] = deque(maxlen=MOST_ROWS)
        self._loader = -1
        self._rows = self._batch = 0

    def waits_for(self, rows: int) -> bool:
        """Return whether so many rows, of several batches, were drawn and predicted."""
        return max(LEAST_ROWS, self._batch + 1) <= rows <= len(self._labels) == len(self._predicted)

    def drew(self, parts: Sequence[Tensor]) -> None:
        """Note the labels of a batch that is drawn where no graph is kept."""
        last = self._recorder.log.events[-1] if self._recorder.log.events else None
        seen = self._recorder.loaders.get(last.loader) if isinstance(last, Batch) else None
        self._rows = 0
        if torch.is_grad_enabled() or seen is None or seen.sampler != "RandomSampler":
            return
        labels = next((each for each in reversed(parts) if each.numel() == len(each) and each.dim()), None)
        if labels is None or labels.is_complex() or len(parts) < 2:
            return
        if self._loader != seen.id:
            self._labels.clear()
            self._predicted.clear()
            self._batch = 0
        self._loader, self._rows = seen.id, len(labels)
        self._batch = max(self._batch, self._rows)
        self._labels += labels.detach().flatten().tolist()

    def evaluated(self, model: int, output: Any) -> None:
        """Note what a model predicts for the rows that were drawn last: their classes, or their only score."""
        del model
        if not self._rows or not isinstance(output, Tensor) or len(output) != self._rows or output.dim() > 2:
            return
        values = output.detach()
        of_classes = values.dim() == 2 and values.shape[1] > 1
        self._predicted += (values.argmax(1) if of_classes else values).flatten().tolist()
        self._rows = 0

    def compared(self, right: Sequence[float], predicted: Sequence[float]) -> None:
        """Look at what is given for right and for predicted, of all rows of the last pass: the one in another order than these were drawn and predicted in."""
        rows = len(right)
        if rows != len(predicted) or not self.waits_for(rows):
            return
        drawn, made = list(self._labels)[-rows:], list(self._predicted)[-rows:]
        if list(right) == drawn or sorted(right) != sorted(drawn) or not _are_of(predicted, made):
            return
        moved = sum(one != other for one, other in zip(right, drawn, strict=True))
        what = (
            f"The loader shuffles the rows that are predicted, and the {rows} labels that these are compared with stand in the order of the data set: "
            f"{moved} of them are those of other rows."
        )
        fix = "loader = DataLoader(test_rows, batch_size, shuffle=False)   # or the labels of each batch, gathered beside its predictions"
        at = self._recorder.loaders[self._loader].at
        self._recorder.add(Fault(at, self._recorder.log.updates, "mismatched_rows", what, fix, certain=True))


def _are_of(predicted: Sequence[float], made: list[float]) -> bool:
    """Return whether predictions are what a model made, in its order: as they are, or as the side of a bound that they lie on."""
    pairs = list(zip(predicted, made, strict=True))
    return (
        all(abs(one - other) <= CLOSE * max(1.0, abs(other)) for one, other in pairs)
        or all(one == (other > 0) for one, other in pairs)
        or all(one == (other > HALF) for one, other in pairs)
    )
