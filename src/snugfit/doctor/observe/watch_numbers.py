"""Watch what a script does with numbers by itself: differences of tensors, reads from the device, and torch's switches for debugging."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.script_events import Backward, Forward, Read, Step
from snugfit.doctor.observe.watch_log import Recorder, is_own, where
from snugfit.doctor.observe.watch_losses import look_at_shapes
from snugfit.doctor.observe.watch_modules import ModuleWatch

_Call = Callable[..., Any]
ANOMALY, PROFILER = "anomaly mode", "a profiler"


def watch_numbers(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record errors that a script computes itself in shapes that do not fit, one read in each micro-batch, and switches."""

    def differing(original: _Call) -> _Call:
        def __sub__(self: Any, other: Any) -> Any:
            if (
                not torch.compiler.is_compiling()
                and isinstance(other, Tensor)
                and recorder.detailed
                and not modules.inside
                and recorder.active
            ):
                with recorder.guard():
                    if self.requires_grad != other.requires_grad and not (self.is_nested or other.is_nested):
                        look_at_shapes(recorder, "the difference", self, other)
            return original(self, other)

        return __sub__

    def reading(original: _Call) -> _Call:
        name = original.__name__

        def read(self: Any) -> Any:
            if not torch.compiler.is_compiling() and is_own(sys._getframe(1).f_code.co_filename):
                with recorder.guard():
                    # a number that was drawn on the processor costs nothing
                    computed = self.requires_grad or self.device.type != "cpu"
                    if computed and recorder.active and not modules.inside and _in_micro_batch(recorder):
                        recorder.add(Read(where(), recorder.log.updates, name, self.device.type))
            return original(self)

        return read

    def switching(name: str) -> Callable[[_Call], _Call]:
        def wrapped(original: _Call) -> _Call:
            def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
                original(self, *args, **kwargs)
                with recorder.guard():
                    recorder.log.switches[name] = where()

            return __init__

        return wrapped

    patches.wrap(Tensor, "__sub__", differing)
    for method in ("item", "tolist", "__float__"):
        patches.wrap(Tensor, method, reading)
    for kind in (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly):
        patches.wrap(kind, "__init__", switching(ANOMALY))
    for profiler in (torch.profiler.profile, torch.autograd.profiler.profile):
        patches.wrap(profiler, "__init__", switching(PROFILER))


def _in_micro_batch(recorder: Recorder) -> bool:
    """Return whether a micro-batch is being computed, or was since the last step, and nothing was read in it yet."""
    for event in reversed(recorder.log.events):
        if isinstance(event, Read):
            return False
        if isinstance(event, Forward | Backward | Step):
            return not isinstance(event, Forward) or event.grad
    return False
