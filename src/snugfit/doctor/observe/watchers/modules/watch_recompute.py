"""Watch activations that are computed again for the backward pass: whether dropout draws the same numbers then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as recompute

from snugfit.doctor.observe.events.script_events import RecomputeDraws
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

_Call = Callable[..., Any]


def watch_recompute(recorder: Recorder, patches: Patches) -> None:
    """Record what draws random numbers and is told not to restore them."""

    def recomputing(original: _Call) -> _Call:
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            free = kwargs.get("preserve_rng_state", True) is False and torch.is_grad_enabled()
            if (
                torch.compiler.is_dynamo_compiling()
                or not free
                or not recorder.detailed
                or not recorder.active
            ):
                return original(*args, **kwargs)
            before: list[Tensor] = []
            with recorder.guard():
                before = _random_states()
            result = original(*args, **kwargs)
            with recorder.guard():
                if any(
                    not torch.equal(then, now) for then, now in zip(before, _random_states(), strict=False)
                ):
                    recorder.add(RecomputeDraws(where(), recorder.log.updates))
            return result

        return checkpoint

    patches.wrap(recompute, "checkpoint", recomputing)


def _random_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states
