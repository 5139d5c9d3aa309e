"""Watch what is kept as the best of a training: scores that nothing notes, and models that are named and not copied."""

from __future__ import annotations

from typing import Any

from torch import nn

from snugfit.doctor.observe.best_scores import aliases_of_best, reset_best, unnoted_best
from snugfit.doctor.observe.run_events import BestAliased, BestNotNoted
from snugfit.doctor.observe.watchers.watch_log import Recorder, line_in, own_frames

MOST_FRAMES = 4


def look_for_best(recorder: Recorder) -> None:
    """Note a best score that a condition around a save compares with, and that nothing sets, or that each pass begins anew."""
    for frame in own_frames(MOST_FRAMES):
        name, line = reset_best(frame.f_code.co_filename, frame.f_lineno)
        if name:
            recorder.add(BestNotNoted(line_in(frame, line), recorder.log.updates, name, reset=True))
            return
        name = unnoted_best(frame.f_code.co_filename, frame.f_lineno)
        if name:
            recorder.add(BestNotNoted(line_in(frame, frame.f_lineno), recorder.log.updates, name))
            return


def look_for_aliases(recorder: Recorder) -> bool:
    """Note a model that a loop around this call gives another name where a score is the best, and that it goes on to train; return whether there is one."""
    for frame in own_frames(MOST_FRAMES):
        for alias in aliases_of_best(frame.f_code.co_filename, frame.f_code.co_name):
            names: dict[str, Any] = {**frame.f_globals, **frame.f_locals}
            owner = names.get(alias.owner) if alias.owner else None
            model = getattr(owner, alias.source, None) if alias.owner else names.get(alias.source)
            if isinstance(model, nn.Module):
                at = line_in(frame, alias.line)
                recorder.add(BestAliased(at, recorder.log.updates, alias.name, alias.source))
                return True
    return False
