"""Watch seeds: random numbers that begin anew while a model trains, those of torch and of NumPy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from snugfit.doctor.observe.events.script_events import Seed
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames, where

_Call = Callable[..., Any]
MOST_FRAMES = 4
_SEEDING = re.compile(r"seed|determin|reproduc", re.IGNORECASE)


class _Sown(NamedTuple):
    at: str
    update: int
    seed: int
    state: Any


class SeedWatch:
    """The last seed of each generator, until an optimizer step tells whether the training drew from it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[str, _Sown] = {}

    def install(self, patches: Patches) -> None:
        patches.wrap(torch, "manual_seed", self._seeding("torch"))
        if "numpy" in sys.modules:
            patches.wrap(sys.modules["numpy"].random, "seed", self._seeding("numpy"))

    def _seeding(self, generator: str) -> Callable[[_Call], _Call]:
        recorder = self._recorder

        def wrapped(original: _Call) -> _Call:
            def seeding(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                recorder.wake()
                seed = (
                    torch.initial_seed()
                    if generator == "torch"
                    else next(iter((*args, *kwargs.values())), None)
                )
                if isinstance(seed, int) and not torch.compiler.is_dynamo_compiling() and recorder.active:
                    with recorder.guard():
                        self._last[generator] = _Sown(
                            _place(), recorder.log.updates, seed, _state_of(generator)
                        )
                return result

            return seeding

        return wrapped

    def before_step(self) -> None:
        """Note the last seeds if the numbers that are drawn now are still their own: a state that was put back has another seed."""
        last, self._last = self._last, {}
        for generator, sown in last.items():
            if generator == "torch":
                if torch.initial_seed() != sown.seed:
                    continue
                drawn = not torch.equal(torch.get_rng_state(), sown.state) or torch.cuda.is_initialized()
            else:
                drawn = _state_of(generator) != sown.state
            if drawn:
                self._recorder.add(Seed(sown.at, sown.update, sown.seed))


def _place() -> str:
    """Return the line that seeds, or that calls a function which does nothing else, by its name."""
    for frame in own_frames(MOST_FRAMES):
        if not _SEEDING.search(frame.f_code.co_name):
            return line_in(frame, frame.f_lineno)
    return where()


def _state_of(generator: str) -> Any:
    """Return what tells whether numbers were drawn."""
    if generator == "torch":
        return torch.get_rng_state()
    _, numbers, place, *_ = sys.modules["numpy"].random.get_state()
    return bytes(numbers), place
