"""Watch seeds: random numbers that begin anew while a model trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.script_events import Seed
from snugfit.doctor.observe.watchers.watch_log import Recorder, where

_Call = Callable[..., Any]


class _Sown(NamedTuple):
    at: str
    update: int
    seed: int
    state: Tensor


class SeedWatch:
    """The last seed, until an optimizer step tells whether the training drew from it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: _Sown | None = None

    def install(self, patches: Patches) -> None:
        patches.wrap(torch, "manual_seed", self._seeding)

    def _seeding(self, original: _Call) -> _Call:
        def manual_seed(seed: Any) -> Any:
            result = original(seed)
            self._recorder.wake()
            if not torch.compiler.is_dynamo_compiling() and self._recorder.active:
                with self._recorder.guard():
                    update, state = self._recorder.log.updates, torch.get_rng_state()
                    self._last = _Sown(where(), update, torch.initial_seed(), state)
            return result

        return manual_seed

    def before_step(self) -> None:
        """Note the last seed if the numbers that are drawn now are still its own: a state that was put back has another seed."""
        last, self._last = self._last, None
        if last is None or torch.initial_seed() != last.seed:
            return
        drawn = not torch.equal(torch.get_rng_state(), last.state)
        if drawn or torch.cuda.is_initialized():
            self._recorder.add(Seed(last.at, last.update, last.seed))
