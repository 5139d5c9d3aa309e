"""Watch losses whose rows are weighed when they have become one number."""

from __future__ import annotations

from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.late_weights import weights_of_one_number
from snugfit.doctor.observe.recording.companions import Companion
from snugfit.doctor.observe.recording.own_source import line_of_loss
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_SEEN = 3


class WeightWatch(Companion):
    """A watcher of what is differentiated: whether its weights of rows weigh them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def differentiated(self, value: Tensor) -> None:
        late = weights_of_one_number(value)
        if late is None:
            return
        what = (
            f"{late.rows} weights, from {late.least:.3g} to {late.most:.3g}, are multiplied with one number that was made of {late.rows} rows before: each row weighs "
            "the same, and the sum of the weights alone counts."
        )
        fix = 'losses = F.cross_entropy(scores, labels, reduction="none")   # one of each row\nloss = (losses * weights).mean()'
        at, update = line_of_loss() or where(), self._recorder.log.updates
        self._recorder.add(Fault(at, update, "late_weights", what, fix, LEAST_SEEN, certain=True))
