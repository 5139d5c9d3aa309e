"""Watch softmax and sigmoid wherever they are called: what they are given, and over which axis they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from snugfit.doctor.observe.events.script_events import NotANumber, ScoresAsLogits
from snugfit.doctor.observe.graphs.graph_nodes import mark_line, squashed_by
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.infinite_values import look_at_infinities
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch

_Call = Callable[..., Any]
_OVER_ROWS = "snugfit softmax over the rows"
_NAMES = ("softmax", "log_softmax", "sigmoid")
_OF_POSITIVES = ("log", "log2", "log10", "sqrt", "rsqrt")
_UNBOUNDED = ("pow", "exp", "reciprocal", "std", "var", "acos", "asin")
"""Functions that make something infinite, or no number, of some numbers."""


def watch_squashes(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record what is squashed a second time, and mark what a softmax over the rows of a batch gave, in the first updates."""

    def squashing(original: _Call) -> _Call:
        name = original.__name__

        def squash(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if (
                not torch.compiler.is_dynamo_compiling()
                and recorder.detailed
                and not recorder.looking
                and isinstance(result, Tensor)
                and recorder.here
            ):
                with recorder.guard():
                    given = args[0] if args else kwargs.get("input")
                    axis = args[1] if len(args) > 1 else kwargs.get("dim")
                    _look_at(recorder, modules, name, given, result, axis)
            return result

        return squash

    def look_at_limits(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> None:
        given = args[0] if args else kwargs.get("input")
        if isinstance(given, Tensor) and not given.is_complex():
            if given.requires_grad and name in _OF_POSITIVES:
                _look_at_least(recorder, name, given.detach())
            if name == "exp" and result.requires_grad:
                mark_line(result, where())
            look_at_infinities(recorder, name, given, result)

    limited = after_own_calls(recorder, look_at_limits)
    for name in (*_OF_POSITIVES, *_UNBOUNDED):
        in_c = getattr(torch, name)
        for owner in (Tensor, torch):
            patches.wrap(owner, name, limited)
        script_as(getattr(torch, name), in_c)
    patches.wrap(Tensor, "__pow__", limited)
    for owner, names in ((Tensor, _NAMES), (torch, _NAMES), (functional, ("logsigmoid",))):
        for name in names:
            in_c = getattr(owner, name)
            patches.wrap(owner, name, squashing)
            if owner is not Tensor:
                script_as(getattr(owner, name), in_c)


def _look_at_least(recorder: Recorder, name: str, values: Tensor) -> None:
    """Note numbers of 0 or less that such a function gets, none of which was infinite before."""
    if recorder.active and not bool((values > 0).all()) and bool(values.isfinite().all()):
        recorder.add(NotANumber(where(), recorder.log.updates, name))


def _look_at(
    recorder: Recorder, modules: ModuleWatch, name: str, given: Any, result: Tensor, axis: Any
) -> None:
    """Note probabilities that are squashed again, and a softmax over an axis as long as the batch, which is the first one."""
    if not isinstance(given, Tensor) or given.is_nested or not (result.requires_grad and recorder.active):
        return
    mark_line(result, where())
    # of a number that is too large for its type a softmax gives none either
    if bool(result.isnan().any()) and not bool((given.isnan() | (given == math.inf)).any()):
        recorder.add(NotANumber(where(), recorder.log.updates, name))
    made = squashed_by(given.grad_fn)
    # within a model a softmax over gates weighs what it attends to
    if made and not (made == "Sigmoid" and name == "softmax" and modules.computing):
        recorder.add(ScoresAsLogits(where(), recorder.log.updates, name))
    rows = modules.rows_in_batch
    first = isinstance(axis, int) and given.dim() > 1 and axis % given.dim() == 0
    if first and given.shape[0] == rows > 1 and rows not in given.shape[1:]:
        metadata = getattr(result.grad_fn, "metadata", None)
        if metadata is not None:
            metadata[_OVER_ROWS] = where(), rows


def weights_over_rows(node: Any) -> tuple[str, int]:
    """Return where the weights at a node were made by a softmax over the rows of a batch, through views alone, and how many rows; "" and 0 where they were not."""
    for _ in range(8):
        if node is None:
            break
        place, rows = (getattr(node, "metadata", None) or {}).get(_OVER_ROWS, ("", 0))
        if place:
            return place, rows
        if not type(node).__name__.startswith(
            ("View", "Unsafe", "Unsqueeze", "Expand", "Squeeze", "Clone", "Reshape")
        ):
            break
        node = node.next_functions[0][0]
    return "", 0


def softmax_over_rows(node: Any, rows: int, most: int = 4000) -> str:
    """Return where a softmax over so many rows of a batch was taken, of which values were computed; "" where there is none."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        place, over = (getattr(node, "metadata", None) or {}).get(_OVER_ROWS, ("", 0))
        if over == rows:
            return str(place)
        todo += [each for each, _ in node.next_functions]
    return ""
