"""Watch what is kept as the best of a training: scores that nothing notes, and models that are named and not copied."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from snugfit.doctor.observe.events.run_events import BestAliased, BestNotNoted, Fault
from snugfit.doctor.observe.events.state_events import Save
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames
from snugfit.doctor.observe.source.best_scores import (
    aliases_of_best,
    compares_best,
    is_under_condition,
    reset_best,
    unnoted_best,
)
from snugfit.doctor.observe.source.early_ends import early_ends
from snugfit.doctor.observe.source.script_syntax import last_name

_COMPARES: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
}
MOST_FRAMES = 4
LEAST_WRITTEN = 3


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


def look_at_last(recorder: Recorder, weights: list[str]) -> None:
    """Note a first save of weights behind a loop that has stopped for want of a gain, with a score that is worse than the best one, of which nothing was kept."""
    if not (weights and recorder.log.updates) or any(
        isinstance(each, Save) and each.weights and each.update for each in recorder.log.events
    ):
        return
    for frame in own_frames(MOST_FRAMES):
        for end in early_ends(frame.f_code.co_filename, frame.f_lineno):
            score, best = _number(end.score, frame), _number(end.best, frame)
            waited, most = _number(end.waited.left, frame), _number(end.waited.comparators[0], frame)
            compare = _COMPARES.get(type(end.waited.ops[0]))
            if score is None or best is None or waited is None or most is None or compare is None:
                continue
            if compare(waited, most) and (score > best if end.less else score < best):
                name = last_name(end.score)
                what = (
                    f"The training has stopped, since `{name}` did not gain any more: it is {score:.4g}, and was {best:.4g} at best. The last weights are "
                    "saved, and of the best none were kept."
                )
                fix = f"    best, kept = {name}, copy.deepcopy(model.state_dict())   # where it gains\nmodel.load_state_dict(kept)   # before it is saved"
                at = line_in(frame, frame.f_lineno)
                recorder.add(Fault(at, recorder.log.updates, "best_not_copied", what, fix))
                return


def _number(node: ast.expr, frame: FrameType) -> float | None:
    """Return the number that a name, or an attribute of one, has in a frame; None where it is none that is known there."""
    if isinstance(node, ast.Constant):
        value = node.value
    elif isinstance(node, ast.Name):
        value = frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    else:
        value = _object(node, frame)
    return float(value) if isinstance(value, int | float) else None


def _object(node: ast.expr, frame: FrameType) -> Any:
    """Return what a dotted name stands for, without running code of the script; None where that is not known."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    owner = _object(node.value, frame) if isinstance(node, ast.Attribute) else None
    return getattr(owner, "__dict__", {}).get(last_name(node))


def look_at_best_file(recorder: Recorder, file: Any) -> None:
    """Note a file that is called the best and is written under no condition, in a script that compares a score with the best one."""
    if (
        not isinstance(file, str | PathLike)
        or "best" not in Path(file).name.lower()
        or not recorder.log.updates
    ):
        return
    frames = list(own_frames(MOST_FRAMES))
    whole = next((n for n, each in enumerate(frames) if each.f_code.co_name == "<module>"), len(frames))
    frames = frames[: whole + 1]  # what imports or runs the script is none of it
    if frames and not any(is_under_condition(each.f_code.co_filename, each.f_lineno) for each in frames):
        if not compares_best(frames[0].f_code.co_filename):
            return
        what = (
            f"`{Path(file).name}` is written whatever the score: it holds the last state, not the best one."
        )
        fix = "if score > best:\n    best = score\n    torch.save(model.state_dict(), path)"
        at, update = line_in(frames[0], frames[0].f_lineno), recorder.log.updates
        recorder.add(Fault(at, update, "best_overwritten", what, fix, LEAST_WRITTEN))


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
