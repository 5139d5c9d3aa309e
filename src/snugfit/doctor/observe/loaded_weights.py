"""Weights that were loaded, compared with those that the first optimizer step after it finds."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.script_events import Overwritten
from snugfit.doctor.observe.watchers.watch_log import Recorder, where

MATRICES, SAMPLED = 16, 256
ALIKE = 0.5
"""Cosine of what was loaded and what is there now, above which something of it is left."""


class _Loaded(NamedTuple):
    module: weakref.ref[nn.Module]
    at: str
    samples: dict[str, Tensor]


class LoadedWeights:
    """The last weights that were loaded into each module."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._loaded: dict[int, _Loaded] = {}

    def restored(self, module: nn.Module) -> None:
        """Remember samples of the matrices that were loaded."""
        self._loaded[self._recorder.number(module)] = _Loaded(weakref.ref(module), where(), _samples(module))

    def before_step(self, optimizer: Any) -> None:
        """Note what of the loaded weights that this optimizer moves is gone, before it moves them."""
        if not self._loaded:
            return
        own = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for number, (reference, at, samples) in list(self._loaded.items()):
            module = reference()
            if module is None:
                del self._loaded[number]
            elif any(id(each) in own for each in module.parameters()):
                del self._loaded[number]
                self._compare(at, samples, _samples(module))

    def _compare(self, at: str, before: dict[str, Tensor], now: dict[str, Tensor]) -> None:
        pairs = [(each.float(), now[name].float()) for name, each in before.items() if name in now]
        pairs = [(one, other) for one, other in pairs if one.shape == other.shape and one.any()]
        lost = sum(
            float(torch.nn.functional.cosine_similarity(one, other, dim=0)) < ALIKE for one, other in pairs
        )
        if lost:
            self._recorder.add(Overwritten(at, self._recorder.log.updates, len(pairs), lost))


def _samples(module: nn.Module) -> dict[str, Tensor]:
    named = ((name, each) for name, each in module.named_parameters() if each.dim() > 1 and each.numel() > 8)
    return {
        # loaded on the processor, and moved to a device before the step
        name: each.detach().reshape(-1)[:SAMPLED].to("cpu", copy=True)
        for _, (name, each) in zip(range(MATRICES), named, strict=False)
    }
