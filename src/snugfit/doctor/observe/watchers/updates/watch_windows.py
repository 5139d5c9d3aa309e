"""Watch losses that are divided by the number of micro-batches of a window."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.run_events import DividedForWindow
from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.companions import Companion
from snugfit.doctor.observe.recording.internals import number_beside
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import innermost, where
from snugfit.doctor.observe.source.divided_losses import divisor_of_window

MOST_FACTORS, LONGEST = 4, 1024


class WindowWatch(Companion):
    """A watcher of what is differentiated: by which whole number it was divided last, where the source says that this is a window's length."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def differentiated(self, value: Tensor) -> None:
        frame, number = innermost(), _divisor(value.grad_fn)
        if frame is None or not number:
            return
        name = divisor_of_window(frame.f_code.co_filename, frame.f_lineno)
        if name:
            self._recorder.add(DividedForWindow(where(), self._recorder.log.updates, name, number))


def _divisor(node: Any) -> int:
    """Return the first whole number above 1 by which a value was divided, looking through other numbers that it was multiplied by; 0 without."""
    for _ in range(MOST_FACTORS):
        following = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        number = number_beside(node) if kind_of(node).startswith(("Div", "Mul")) else 0.0
        if len(following) != 1 or not number:
            return 0
        if kind_of(node).startswith("Div") and number == round(number) and 1 < number <= LONGEST:
            return round(number)
        node = following[0]
    return 0
