"""Watch the scores of evaluations in loops over batches: what becomes of each, by the script's source."""

from __future__ import annotations

from types import FrameType

import torch

from snugfit.doctor.observe.events.run_events import MeanOfBatches
from snugfit.doctor.observe.events.script_events import Backward, Forward, LastScore
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames
from snugfit.doctor.observe.source.batch_means import loop_trains, mean_of_batches, takes_mean
from snugfit.doctor.observe.source.overwritten_names import is_repeated, read_after_loop
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch

MOST_FRAMES = 3
"""A score may be computed by a function of the loop's, and by a method of that."""


def look_at_loop(recorder: Recorder, modules: ModuleWatch, *, mean: bool) -> None:
    """Note a score of an evaluation of which that of the last batch alone is read, or whose means are averaged.

    One that is computed of the same rows again is timed.

    Args:
        mean: whether it is a mean by itself; else by the statement that computes it.
    """
    if torch.is_grad_enabled() and not _was_without_graph(recorder):
        return
    for place, frame in enumerate(own_frames(MOST_FRAMES)):
        file, line = frame.f_code.co_filename, frame.f_lineno
        mean = mean or (place == 0 and takes_mean(file, line))
        if is_repeated(file, line):  # a loop of a caller's repeats all of this one
            _look_at_frame(recorder, modules, frame, mean=mean)
            return


def _was_without_graph(recorder: Recorder) -> bool:
    """Return whether the last forward pass was one without a graph, whose predictions may be scored outside of `no_grad()`."""
    last = next(
        (each for each in reversed(recorder.log.events) if isinstance(each, Forward | Backward)), None
    )
    return isinstance(last, Forward) and not last.grad


def _look_at_frame(recorder: Recorder, modules: ModuleWatch, frame: FrameType, *, mean: bool) -> None:
    file, line, update = frame.f_code.co_filename, frame.f_lineno, recorder.log.updates
    left = read_after_loop(file, line)
    # a loop that trains too gives both losses as such means, to be read beside each other: its exact score is counted apart
    averaged = mean_of_batches(file, line) if mean and not loop_trains(file, line) else 0
    if left is not None:
        name, read = left
        at, rows = line_in(frame, line), modules.rows.scored
        before, modules.scored_inputs[at] = modules.scored_inputs.get(at), rows
        if before != rows or not rows:
            recorder.add(LastScore(at, update, name, line_in(frame, read)))
    elif averaged:
        recorder.add(MeanOfBatches(line_in(frame, averaged), update, modules.rows_in_batch))
