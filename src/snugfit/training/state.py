"""What resuming a step needs, and going on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.core.sharded import sharded_like
from snugfit.errors import SettingError
from snugfit.training.optimizer import load_optimizer

if TYPE_CHECKING:
    from snugfit.training.step import Step


def state_of(step: Step) -> dict[str, Any]:
    """All that resuming needs: weights, buffers, optimizer, techniques and progress; live tensors."""
    return {
        **_named_tensors(step.model),
        "optimizer": step.optimizer.state_dict(),
        "techniques": {name: kept.state_dict() for name, kept in step.seams.states.items()},
        "progress": step.progress.state_dict(),
    }


def state_like(step: Step, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved state is to be like: the step's own, and for what an optimizer has not made yet the parameter that it belongs to."""
    own = state_of(step)
    parameters = [each for group in step.optimizer.param_groups for each in group["params"]]
    moments = {
        place: dict.fromkeys(kept, parameters[place])
        for place, kept in saved["optimizer"].get("state", {}).items()
        if isinstance(place, int) and place < len(parameters)
    }
    return {**own, "optimizer": {**own["optimizer"], "state": moments}}


def load(step: Step, saved: Mapping[str, Any]) -> None:
    """Go on from `saved`, bit for bit.

    Raises:
        SettingError: it is of another model, optimizer or set of techniques; nothing was loaded.
    """
    named = _named_tensors(step.model)
    for kind, own in named.items():
        _check_same(own, saved[kind], kind)
    if set(saved["techniques"]) != set(step.seams.states):
        raise SettingError(
            f"techniques: the state has {sorted(saved['techniques'])}, the step {sorted(step.seams.states)}."
        )
    load_optimizer(step.optimizer, saved["optimizer"])
    with torch.no_grad():
        for kind, own in named.items():
            for name, tensor in own.items():
                tensor.copy_(sharded_like(tensor, saved[kind][name]))
    for name, technique in step.seams.states.items():
        kept = saved["techniques"][name]
        technique.load_state_dict(
            sharded_like(technique.state_dict(), kept) if step.strategy.shards else kept
        )
    step.progress.load_state_dict(saved["progress"])


def _named_tensors(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    # a buffer that is not persistent is a cache, which may have grown: it is made again and not saved
    saved = model.state_dict(keep_vars=True)
    return {
        "parameters": {name: p.detach() for name, p in model.named_parameters()},
        "buffers": {name: b.detach() for name, b in model.named_buffers() if name in saved},
    }


def _check_same(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], kind: str) -> None:
    differing = set(own) ^ set(saved)
    for name in set(own) & set(saved):
        if own[name].shape != saved[name].shape or own[name].dtype != saved[name].dtype:
            differing.add(name)
    if differing:
        names = ", ".join(sorted(differing)[:5])
        raise SettingError(f"model: its {kind} are not those of the saved state, by name or shape: {names}.")
