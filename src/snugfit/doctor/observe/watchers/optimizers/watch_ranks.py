"""Watch ranks: whether they exchange gradients, and whether their weights stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn

from snugfit.doctor.observe.events.script_events import RankWeights
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Gradients
from snugfit.doctor.observe.watchers.weights.weights import digest

_Call = Callable[..., Any]
SAMPLED = 4
"""Elements of each parameter."""


def watch_ranks(recorder: Recorder, gradients: Gradients, patches: Patches) -> None:
    """Count the exchanges between ranks, and those of gradients before the first update."""

    def exchanging(original: _Call) -> _Call:
        def all_reduce(*args: Any, **kwargs: Any) -> Any:
            recorder.log.exchanges += 1
            if not recorder.log.updates and args and not recorder.looking and recorder.here:
                with recorder.guard():
                    if _is_among_all(*args[2:3], **kwargs) and any(
                        each.grad is not None and each.grad.data_ptr() == args[0].data_ptr()
                        for state in gradients.states.values()
                        for each in state.parameters()
                    ):
                        recorder.log.gradients_exchanged += 1
                        recorder.log.exchanged_at = recorder.log.exchanged_at or where()
            return original(*args, **kwargs)

        return all_reduce

    if distributed.is_available():
        patches.wrap(distributed, "all_reduce", exchanging)


def look_at_ranks(recorder: Recorder, optimizer: Any, number: int) -> None:
    """Note what a rank's weights are before a step, where each rank has whole ones of the same form."""
    if not recorder.close or not distributed.is_available() or not distributed.is_initialized():
        return
    parameters: list[Tensor] = [each for group in optimizer.param_groups for each in group["params"]]
    whole = all(type(each) in (Tensor, nn.Parameter) for each in parameters)
    if distributed.get_world_size() < 2 or not whole:
        return
    samples = [each.detach().reshape(-1)[:SAMPLED].float().cpu() for each in parameters]
    forms = sum(each.numel() for each in parameters), len(parameters)
    recorder.add(
        RankWeights(where(), recorder.log.updates, number, digest([torch.cat(samples)]), list(forms))
    )


def _is_among_all(group: Any = None, **_: Any) -> bool:
    """Return whether an exchange is one among all ranks: parts of a model have groups of their own, and other weights in each."""
    return group is None or group is distributed.group.WORLD
