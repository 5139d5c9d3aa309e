"""Watch how a script looks for the nearest row of each row, by whatever function: among all rows, the nearest one is the row itself."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import innermost, is_own, where
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch

_Call = Callable[..., Any]
LEAST_ROWS = 16
ITSELF = 0.95
_SLACK = 1e-3
_FUNCTIONS = ("argmin", "argmax", "argsort", "topk", "sort", "min", "max")
_LEFT_OUT = re.compile(r"\[\s*:\s*,\s*1\s*[:\]]|\[\s*1\s*:\s*\]|\.pop\(0\)|!=\s*(i|index|row)\b|remove\(")
_FIX = 'distance.fill_diagonal_(float("inf"))   # a row is no neighbour of itself; likenesses get -inf'


def watch_nearest(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record where the nearest of all rows is looked for among rows that hold itself."""

    def wrapped(original: _Call) -> _Call:
        name = original.__name__

        def nearest(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            values = args[0] if args else kwargs.get("input")
            if (
                recorder.log.updates
                and not (recorder.looking or torch.compiler.is_dynamo_compiling())
                and isinstance(values, Tensor)
                and is_own(sys._getframe(1).f_code.co_filename)
                and recorder.here
            ):
                with recorder.guard():
                    places = result if isinstance(result, Tensor) else result[-1]
                    if _is_of_all_rows(values, places) and not modules.inside and recorder.active:
                        axis = kwargs.get("dim", args[1] if len(args) > 1 and name != "topk" else -1)
                        _look(recorder, values, places, 0 if axis == 0 else 1)
            return result

        return nearest

    for name in _FUNCTIONS:
        in_c = getattr(torch, name)
        for owner in (Tensor, torch):
            patches.wrap(owner, name, wrapped)
        script_as(getattr(torch, name), in_c)


def _is_of_all_rows(values: Tensor, places: Any) -> bool:
    """Return whether places in a table of all rows against all rows were asked for, of which nothing learns."""
    if values.dim() != 2 or len(values) != values.shape[1] or not isinstance(places, Tensor):
        return False
    rows = len(values)
    whole = not places.is_floating_point() and places.dim() > 0 and rows in (len(places), places.shape[-1])
    return rows >= LEAST_ROWS and whole and not values.requires_grad


def _look(recorder: Recorder, values: Tensor, places: Tensor, axis: int) -> None:
    """Note that nearly each row has places itself, in a table that is the same both ways, as that of two kinds of rows is not."""
    first = places if places.dim() == 1 else places.select(axis, 0)
    rows = len(values)
    if first.shape != (rows,) or not values.is_floating_point():
        return
    itself = float((first == torch.arange(rows, device=first.device)).float().mean())
    if itself < ITSELF or not torch.allclose(values, values.T, atol=_SLACK):
        return
    if places.dim() > 1 and _leaves_first_out():
        return
    what = f"The nearest of {rows} rows is looked for among all of them: {itself:.0%} find themselves."
    recorder.add(
        Fault(where(), recorder.log.updates, "own_row_scored", what, _FIX, 1, certain=places.dim() == 1)
    )


def _leaves_first_out() -> bool:
    """Return whether the function that asks for the nearest rows leaves out the first of them afterwards."""
    frame = innermost()
    if frame is None:
        return True
    code = frame.f_code
    last = max((line for *_, line in code.co_lines() if line), default=frame.f_lineno)
    lines = linecache.getlines(code.co_filename)[frame.f_lineno - 1 : last + 1]
    return bool(_LEFT_OUT.search("".join(lines)))
