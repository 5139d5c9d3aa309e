"""Watch argmax, which is how classes are scored: over which axis it takes the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import WrongAxis
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_asked_by_script, where
from snugfit.doctor.observe.watchers.losses.watch_losses import simple_loss
from snugfit.doctor.observe.watchers.modules.class_axes import ClassAxes
from snugfit.doctor.observe.watchers.scores.taken_classes import TakenClasses
from snugfit.doctor.observe.watchers.tensors.watch_cuts import note_cut

_Call = Callable[..., Any]


def watch_argmax(recorder: Recorder, axes: ClassAxes, taken: TakenClasses, patches: Patches) -> None:
    """Record calls of argmax, and over which axis it takes the best."""

    def scoring(original: _Call) -> _Call:
        def argmax(input: Tensor, *args: Any, **kwargs: Any) -> Any:
            looked = not torch.compiler.is_dynamo_compiling() and isinstance(input, Tensor)
            if not looked or recorder.looking or not recorder.active:
                return original(input, *args, **kwargs)
            axis = args[0] if args else kwargs.get("dim")
            with recorder.guard():
                if input.dim() > 1:
                    recorder.add(simple_loss(recorder, "argmax", "", False))
                _look_at_argmax(recorder, axes, input, axis)
                if recorder.detailed and is_asked_by_script():
                    note_cut(recorder, input)
            result = original(input, *args, **kwargs)
            with recorder.guard():
                taken.note_best(result, input, axis)
                if axis in (0, -2) and input.dim() == 2 and result.dim() == 1 and not torch.is_grad_enabled():
                    axes.note_best(result, input, where())
                elif axis is None and input.dim() == 2 and result.dim() == 0:
                    axes.note_whole(result, input, where())
            return result

        return argmax

    def taking(original: _Call) -> _Call:
        def largest(input: Any, *args: Any, **kwargs: Any) -> Any:
            axis = args[0] if args else kwargs.get("dim")
            if not isinstance(axis, int) or not isinstance(input, Tensor) or input.dim() < 2:
                return original(input, *args, **kwargs)
            looked = not (torch.compiler.is_dynamo_compiling() or recorder.looking) and recorder.active
            looked = looked and is_asked_by_script()
            if looked and input.dim() > 2:
                with recorder.guard():
                    _look_at_argmax(recorder, axes, input, axis)
            result = original(input, *args, **kwargs)
            if looked:
                with recorder.guard():
                    taken.note_best(result, input, axis)
            return result

        return largest

    for owner in (torch, Tensor):
        in_c = owner.max
        patches.wrap(owner, "max", taking)
        if owner is torch:
            script_as(torch.max, in_c)
    in_c = torch.argmax
    patches.wrap(torch, "argmax", scoring)
    script_as(torch.argmax, in_c)
    patches.wrap(torch.Tensor, "argmax", scoring)


def _look_at_argmax(recorder: Recorder, axes: ClassAxes, scores: Tensor, axis: Any) -> None:
    """Note an argmax of a model's output over an axis as long as that of the classes, which is another one."""
    classes = axes.of(scores)
    if not classes or not isinstance(axis, int) or axis % scores.dim() in classes:
        return
    taken = axis % scores.dim()
    if scores.shape[taken] in {scores.shape[each] for each in classes}:
        right = min(classes)
        what = f"scores of {list(scores.shape)} have their classes on axis {right}, as the loss takes them, and the best are taken over axis {taken}"
        recorder.add(
            WrongAxis(
                where(), recorder.log.updates, "argmax", what, f"predicted = scores.argmax(dim={right})"
            )
        )
