"""Watch what a script does with numbers by itself: differences and products of tensors, reads from the device, and torch's switches for debugging."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import Backward, Forward, Read, ScalarMask, Step
from snugfit.doctor.observe.graphs.differences import keep_with
from snugfit.doctor.observe.graphs.graph_nodes import is_sum_of_all
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.infinite_values import look_at_infinities
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, where
from snugfit.doctor.observe.watchers.losses.watch_distributions import look_at_advantage
from snugfit.doctor.observe.watchers.losses.watch_hand_losses import look_at_overlap
from snugfit.doctor.observe.watchers.losses.watch_losses import (
    DIFFERENCE,
    look_at_bootstrap,
    look_at_error,
)
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.scores.watch_scores import note_score
from snugfit.doctor.observe.watchers.tensors.watch_cuts import note_cut
from snugfit.doctor.observe.watchers.tensors.watch_shapes import (
    look_at_scored_shapes,
    look_at_shapes,
    note_table,
)
from snugfit.doctor.observe.watchers.terms.watch_terms import TermWatch

_Call = Callable[..., Any]
ANOMALY, PROFILER = "anomaly mode", "a profiler"


def watch_numbers(recorder: Recorder, modules: ModuleWatch, terms: TermWatch, patches: Patches) -> None:
    """Record errors that a script computes itself in shapes that do not fit, one read in each micro-batch, and switches."""

    def reading(original: _Call) -> _Call:
        name = original.__name__

        def read(self: Any, *spec: Any, **named: Any) -> Any:
            if (
                not (recorder.looking or recorder.resting)
                and not torch.compiler.is_dynamo_compiling()
                and is_own(sys._getframe(1).f_code.co_filename)
                and recorder.here
            ):
                with recorder.guard():
                    # a number that was drawn on the processor costs nothing
                    computed = self.requires_grad or self.device.type != "cpu"
                    active = computed and recorder.active
                    looked = active and not modules.inside
                    if active and recorder.detailed:
                        note_cut(recorder, self)
                    if looked:
                        terms.note_read(self)
                    if looked and _in_micro_batch(recorder):
                        recorder.add(Read(where(), recorder.log.updates, name, self.device.type))
            return original(self, *spec, **named)

        return read

    def switching(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                original(self, *args, **kwargs)
                with recorder.guard():
                    recorder.log.switches[name] = where()

            return __init__

        return wrapped

    for name, called in (
        ("__sub__", DIFFERENCE),
        ("sub", DIFFERENCE),
        ("subtract", DIFFERENCE),
        ("__mul__", "the product"),
        ("__truediv__", "the quotient"),
    ):
        patches.wrap(Tensor, name, _operating(recorder, modules, terms, called))
    for name in ("sub", "subtract"):
        in_c = getattr(torch, name)
        patches.wrap(torch, name, _operating(recorder, modules, terms, DIFFERENCE))
        script_as(getattr(torch, name), in_c)
    for method in ("item", "tolist", "__float__", "__format__"):
        patches.wrap(Tensor, method, reading)
    for kind in (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly):
        patches.wrap(kind, "__init__", switching(ANOMALY))
    for profiler in (torch.profiler.profile, torch.autograd.profiler.profile):
        patches.wrap(profiler, "__init__", switching(PROFILER))


def _operating(
    recorder: Recorder, modules: ModuleWatch, terms: TermWatch, name: str
) -> Callable[[_Call], _Call]:
    """Return what wraps an operator of two tensors."""

    def wrapped(original: _Call) -> _Call:
        def operator(*args: Any, **kwargs: Any) -> Any:
            input, other = args[:2] if len(args) > 1 else (None, None)  # torch.sub(input=, other=)
            if (
                torch.compiler.is_dynamo_compiling()
                or recorder.looking
                or recorder.resting
                or not (recorder.detailed or name == DIFFERENCE)
                or not recorder.here
                or not (isinstance(other, Tensor) and isinstance(input, Tensor))
            ):
                return original(*args, **kwargs)
            if recorder.detailed:
                with recorder.guard():
                    if not (input.is_nested or other.is_nested):  # of no shape
                        _look_at_operands(recorder, modules, name, input, other)
            result = original(*args, **kwargs)
            with recorder.guard():
                if not (input.is_nested or other.is_nested):
                    _look_at_result(recorder, modules, terms, name, input, other, result)
            return result

        return operator

    return wrapped


def _look_at_operands(
    recorder: Recorder, modules: ModuleWatch, name: str, one: Tensor, other: Tensor
) -> None:
    """Look at operands outside of a model: shapes that do not fit, and policies that are multiplied by a value's graph.

    Two columns are multiplied as a table on purpose; a column and a plain row of numbers are not.
    """
    product = name in ("the product", "the quotient")
    if (
        name == "the product"
        and 0 in (one.dim(), other.dim())
        and one.dim() != other.dim()
        and not modules.computing
    ):
        _look_at_scalar(recorder, *sorted((one, other), key=Tensor.dim))
        return
    if name == "the product" and one.shape == other.shape and not modules.computing and recorder.active:
        look_at_overlap(recorder, one, other)
    mixed, both = one.requires_grad != other.requires_grad, one.requires_grad and other.requires_grad
    apart = mixed and one.shape != other.shape and not (product and one.dim() == other.dim())
    if not (apart or (product and both)) or not recorder.active:
        return
    if apart and not modules.computing:
        look_at_shapes(recorder, name, one, other, tables=False)
    elif both:
        look_at_advantage(recorder, one, other)


def _look_at_result(
    recorder: Recorder,
    modules: ModuleWatch,
    terms: TermWatch,
    name: str,
    one: Tensor,
    other: Tensor,
    result: Any,
) -> None:
    if name == "the quotient" and recorder.detailed and not other.is_complex():
        look_at_infinities(recorder, name, one, result)
    if one.shape != other.shape:
        if recorder.detailed:
            note_table(recorder, one, other, result)
        if name == DIFFERENCE and not torch.is_grad_enabled() and not modules.inside:
            look_at_scored_shapes(recorder, name, one, other)
    elif name == DIFFERENCE:
        _look_at_difference(recorder, modules, terms, one, other, result)


def _look_at_difference(
    recorder: Recorder, modules: ModuleWatch, terms: TermWatch, one: Tensor, other: Tensor, result: Any
) -> None:
    """Look at a difference of as many numbers, outside of a model: an error that will be differentiated, or the score of an evaluation."""
    if modules.computing or not isinstance(result, Tensor):
        return
    if not torch.is_grad_enabled():
        note_score(recorder, modules, one, other)
    elif not (recorder.detailed and recorder.active):
        return
    elif not result.requires_grad:
        terms.alike.note(one, other)
    else:
        events = recorder.log.events
        place = len(events)
        predicted, wanted = (one, other) if one.requires_grad else (other, one)
        if one.requires_grad and other.requires_grad:
            look_at_bootstrap(recorder, one, other)
        else:
            look_at_error(recorder, modules, predicted, wanted)
        shown = events[place:]
        del events[place:]
        keep_with(result, shown)


def _look_at_scalar(recorder: Recorder, number: Tensor, mask: Tensor) -> None:
    """Note the sum over all rows that is multiplied by their mask."""
    if not number.requires_grad or mask.requires_grad or mask.numel() < 2 or not recorder.active:
        return
    if is_sum_of_all(number) and sorted(mask.detach().unique().tolist()) == [0, 1]:
        recorder.add(ScalarMask(where(), recorder.log.updates))


def _in_micro_batch(recorder: Recorder) -> bool:
    """Return whether a micro-batch is being computed, or was since the last step, and nothing was read in it yet."""
    for event in reversed(recorder.log.events):
        if isinstance(event, Read):
            return False
        if isinstance(event, Forward | Backward | Step):
            return not isinstance(event, Forward) or event.grad
    return False
