"""Watch where a script takes values out of a graph: by detach(), by reading a number, by calling a part of a model without a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.graphs.graph_nodes import leaves_of
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import is_looked_at
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

_Call = Callable[..., Any]
MOST_CUTS = 64
_STEPS = ("round", "floor", "ceil", "sign")
"""Functions whose gradient is 0 wherever there is one."""


def watch_cuts(recorder: Recorder, patches: Patches) -> None:
    """Record which parameters lie behind what the script itself detaches, in the first updates."""

    def detaching(original: _Call) -> _Call:
        def detach(*args: Any, **kwargs: Any) -> Any:
            if is_looked_at(recorder):
                with recorder.guard():
                    note_cut(recorder, args[0] if args else kwargs.get("input"))
            return original(*args, **kwargs)

        return detach

    for name in ("detach", "detach_", *_STEPS):
        patches.wrap(Tensor, name, detaching)
    for name in _STEPS:
        in_c = getattr(torch, name)
        patches.wrap(torch, name, detaching)
        script_as(getattr(torch, name), in_c)


def note_cut(recorder: Recorder, value: Any) -> None:
    """Remember the parameters behind a value that is taken out of its graph at this line."""
    if getattr(value, "grad_fn", None) is not None and recorder.active:
        note_parameters(recorder, (each for each in leaves_of(value).values()))


def note_parameters(recorder: Recorder, parameters: Iterable[Tensor]) -> None:
    """Remember parameters that what is computed at this line has no graph to."""
    at, cuts = where(), recorder.log.cuts
    if at and at not in cuts and len(cuts) < MOST_CUTS:
        cuts[at] = [recorder.number(each) for each in parameters if isinstance(each, nn.Parameter)]
