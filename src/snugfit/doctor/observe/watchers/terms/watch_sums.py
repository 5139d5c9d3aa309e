"""Watch sums and means: the lines of the terms of a loss and of what is pooled, and sums over the likenesses of rows to themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.events.term_events import OwnRowScored
from snugfit.doctor.observe.graphs.graph_nodes import made_by, mark_line
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.attention.watch_squashes import weights_over_rows
from snugfit.doctor.observe.watchers.losses.watch_hand_losses import look_at_exponentials, look_at_mean

_Call = Callable[..., Any]
LEAST_LIKE = 8
_SLACK = 1e-3


def watch_sums(recorder: Recorder, patches: Patches) -> None:
    """Keep with sums and means the line that took them, in the first updates."""

    def look(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> None:
        if result.grad_fn is not None and recorder.active:
            if name == "sum":
                _look_at_weights(recorder, args, kwargs)
            mark_line(result, where())
            if name == "mean":
                look_at_mean(recorder, args[0] if args else None, args, kwargs)
            elif name == "sum" and _is_over_last(args, kwargs):
                look_at_mean(recorder, args[0], args[:1], {})
            elif name == "logsumexp":
                look_at_exponentials(recorder, args[0] if args else None)
            _look_at_likenesses(recorder, name, args[0] if args else None, result)

    reducing = after_own_calls(recorder, look)
    for name in ("sum", "mean", "logsumexp"):
        in_c = getattr(torch, name)
        for owner in (Tensor, torch):
            patches.wrap(owner, name, reducing)
        script_as(getattr(torch, name), in_c)


def _is_over_last(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether values are summed up as a whole, or over the places of each row."""
    values, axis = args[0] if args else None, args[1] if len(args) > 1 else kwargs.get("dim")
    return isinstance(values, Tensor) and (axis is None or axis in (-1, values.dim() - 1))


def _look_at_weights(recorder: Recorder, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note values that are multiplied by weights which come to 1 over the rows of a batch, and summed up over another axis."""
    values, axis = args[0] if args else None, args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(values, Tensor) or values.dim() != 3 or not isinstance(axis, int):
        return
    node: Any = values.grad_fn
    if type(node).__name__ != "MulBackward0" or axis % values.dim() != 1:
        return
    for each, _ in node.next_functions:
        at, rows = weights_over_rows(each)
        if at and len(values) == rows:
            what = f"weights come to 1 over the {rows} rows of the batch, and each row takes a sum of its own values by them"
            fix = "weights = scores.softmax(dim=1)"
            recorder.add(WrongAxis(at, recorder.log.updates, "attention over the rows", what, fix))


def _look_at_likenesses(recorder: Recorder, name: str, values: Any, result: Tensor) -> None:
    """Note a sum over the exponentials of all rows' likenesses to each other, each of which is largest to the row itself.

    A kernel is 1 there, and no likeness over a temperature.
    """
    if not isinstance(values, Tensor) or values.dim() != 2 or name == "mean" or result.dim() not in (1, 2):
        return
    rows = values.shape[0]
    if rows != values.shape[1] or rows < LEAST_LIKE or result.numel() != rows:
        return
    if name == "sum" and made_by(values.grad_fn) != "Exp":
        return
    scores = values.detach().float()
    own = scores.diagonal()
    least = math.e if name == "sum" else 1.0
    largest = bool((own >= scores.amax(1) - _SLACK).all()) and float(own.min()) >= least * (1 - _SLACK)
    same = float(own.max() - own.min()) <= _SLACK * float(own.abs().max())
    if largest and same and torch.allclose(scores, scores.T, rtol=1e-3, atol=_SLACK):
        recorder.add(OwnRowScored(where(), recorder.log.updates, rows))
