"""Values that are infinite, or no number: what makes them of numbers, and models and losses that are given some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import InfiniteInput, NotANumber
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where


def look_at_infinities(recorder: Recorder, name: str, given: Tensor, result: Any) -> None:
    """Note what is infinite, or no number, and made of numbers that are finite; where nothing is differentiated, its line alone, since it may be data."""
    if not isinstance(result, Tensor) or not result.is_floating_point() or not recorder.active:
        return
    if bool(result.isfinite().all()) or not bool(given.isfinite().all()):
        return
    if result.requires_grad:
        recorder.add(NotANumber(where(), recorder.log.updates, name))
    else:
        recorder.infinite_at = where()


def note_infinite(recorder: Recorder, values: Iterable[Tensor]) -> None:
    """Note that what a model, or its loss, is given is not finite, and the line that made it so, where that was seen."""
    for each in values:
        numbers = each.is_floating_point() and each.layout is torch.strided
        if not numbers or each.requires_grad or bool(each.isfinite().all()):
            continue
        # zeros and minus infinity, which nothing was seen to make of numbers, are a mask that attention adds
        if recorder.infinite_at or not bool(((each == 0) | (each == -torch.inf)).all()):
            recorder.add(InfiniteInput(recorder.infinite_at or where(), recorder.log.updates))
            return
