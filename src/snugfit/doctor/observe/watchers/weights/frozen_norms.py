"""Norms of frozen weights that a script has put into evaluation mode, and that train() puts back."""

from __future__ import annotations

import weakref

import torch
from torch import nn

from snugfit.doctor.observe.events.run_events import FrozenNormTrains
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.weights.module_facts import NORMS

MOST_TIMES = 8


class FrozenNorms:
    """The norms that were put into evaluation mode by themselves, or in a part of a model."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._set_aside: dict[int, weakref.ref[nn.Module]] = {}  # by id: some define a hash
        self._times = 0

    def switched(self, module: nn.Module, *, training: bool) -> None:
        """Note what the script itself switches to evaluation: a norm, or a part all of whose weights are frozen."""
        norms = [each for each in module.modules() if isinstance(each, NORMS)] if not training else []
        if norms and not any(each.requires_grad for each in module.parameters()):
            self._set_aside.update((id(each), weakref.ref(each)) for each in norms)

    def before(self, root: nn.Module) -> None:
        """Note a norm that is frozen still and in training mode, when the model it is in learns."""
        if not self._set_aside or self._times >= MOST_TIMES or not torch.is_grad_enabled():
            return
        put_back = {
            number
            for number, reference in self._set_aside.items()
            if (each := reference()) is not None and _learns(each)
        }
        if not put_back:
            return
        name = next((name for name, each in root.named_modules() if id(each) in put_back), None)
        if name is not None:
            self._times += 1
            self._recorder.add(FrozenNormTrains(where(), self._recorder.log.updates, name))


def _learns(norm: nn.Module) -> bool:
    """Return whether a norm's statistics move, and none of its weights may."""
    frozen = not any(each.requires_grad for each in norm.parameters())
    return norm.training and frozen and bool(getattr(norm, "track_running_stats", False))
