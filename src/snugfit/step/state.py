"""The state of a step that a resume needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import SettingError
from snugfit.kit.buffers import has_extra_state, persistent_shapes, plain_values
from snugfit.kit.serialize import pack
from snugfit.kit.sharded_tensors import sharded_like
from snugfit.step.optimizer import load_optimizer
from snugfit.step.step_views import SavedStep


def state_of(step: SavedStep) -> dict[str, Any]:
    """Return all that resuming needs: weights, buffers, optimizer, techniques and progress; live tensors."""
    return {
        **_named_tensors(step.model),
        "modules": _modules(step),
        "optimizer": step.optimizer.state_dict(),
        "techniques": {name: technique.state_dict() for name, technique in step.seams.states.items()},
        "progress": step.progress.state_dict(),
        "padding": step.padding.state_dict(),
        "inputs": step.inputs.state_dict(),
    }


def state_like(step: SavedStep, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a saved state is to be like: the step's own, and for what an optimizer has not made yet the parameter that it belongs to."""
    own = state_of(step)
    parameters = [each for group in step.optimizer.param_groups for each in group["params"]]
    moments = {
        place: dict.fromkeys(state, parameters[place])
        for place, state in saved["optimizer"].get("state", {}).items()
        if isinstance(place, int) and place < len(parameters)
    }
    return {**own, "optimizer": {**own["optimizer"], "state": moments}}


def load(step: SavedStep, saved: Mapping[str, Any]) -> None:
    """Go on from `saved`, bit for bit.

    Raises:
        SettingError: it is of another model, optimizer or set of techniques; nothing was loaded.
    """
    modules = saved.get("modules", _NO_MODULES)
    _check_same(_named_tensors(step.model)["parameters"], saved["parameters"], "parameters")
    buffers = _buffers_to_set(step, saved["buffers"], modules["shapes_at_first"])
    if "modules" in saved:
        _check_extra_states(step.model, modules["extra_states"])
    if set(saved["techniques"]) != set(step.seams.states):
        raise SettingError(
            "techniques",
            f"the state has {sorted(saved['techniques'])}, the step {sorted(step.seams.states)}",
            "Give the step the same techniques.",
        )
    load_optimizer(step.optimizer, saved["optimizer"])
    _set_buffers(step, buffers)
    for name, state in modules["extra_states"].items():
        step.model.get_submodule(name).set_extra_state(copy.deepcopy(state))
    for name, values in modules["values"].items():
        vars(step.model.get_submodule(name)).update(values)
    with torch.no_grad():
        for kind, own in _named_tensors(step.model).items():
            for name, tensor in own.items():
                tensor.copy_(sharded_like(tensor, saved[kind][name]))
    for name, technique in step.seams.states.items():
        technique_state = saved["techniques"][name]
        technique.load_state_dict(
            sharded_like(technique.state_dict(), technique_state) if step.strategy.shards else technique_state
        )
    step.progress.load_state_dict(saved["progress"])
    # which earlier checkpoints lack
    step.padding.load_state_dict(saved.get("padding", {"cut": None}))
    step.inputs.load_state_dict(saved.get("inputs", {"copied": None}))


def _named_tensors(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    # a buffer that is not persistent is a cache, which may have grown: it is made again and not saved
    saved = model.state_dict(keep_vars=True)
    return {
        "parameters": {name: p.detach() for name, p in model.named_parameters()},
        "buffers": {name: b.detach() for name, b in model.named_buffers() if name in saved},
    }


def check_saved(step: SavedStep) -> None:
    """Refuse, before anything is trained, extra state that no checkpoint could hold.

    Raises:
        SettingError: names the module.
    """
    for name, module in step.model.named_modules():
        if has_extra_state(module):
            try:
                pack({"extra_state": module.get_extra_state()})
            except SettingError as error:
                raise SettingError(
                    "model",
                    f"'{name or type(module).__name__}' has extra state that cannot be saved without a pickle ({error})",
                    "Let get_extra_state() return tensors, numbers, strings, None, and lists, tuples and dicts of them.",
                ) from error


def made_buffers(step: SavedStep) -> list[str]:
    """Return the names of the buffers that forward has made, or replaced by others of another shape."""
    now = persistent_shapes(step.model)
    return sorted(name for name in now if now[name] != step.at_first.shapes.get(name))


def _modules(step: SavedStep) -> dict[str, Any]:
    """Return what modules keep besides tensors whose shape is known before training.

    That is extra states, the first shapes of buffers that forward has made or replaced by others, and the numbers and texts that stand
    beside those: how long a table has become, or that it is there.
    """
    moved = made_buffers(step)
    return {
        "extra_states": {
            name: module.get_extra_state()
            for name, module in step.model.named_modules()
            if has_extra_state(module)
        },
        "shapes_at_first": {name: step.at_first.shapes.get(name) for name in moved},
        "values": {
            owner: plain_values(step.model.get_submodule(owner))
            for owner in dict.fromkeys(map(_owner, moved))
        },
    }


_NO_MODULES: Mapping[str, Any] = {"extra_states": {}, "shapes_at_first": {}, "values": {}}
"""What checkpoints of earlier versions have of modules."""


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _buffers_to_set(
    step: SavedStep, saved: Mapping[str, Tensor], at_first: Mapping[str, Any]
) -> dict[str, Tensor | None]:
    """Return the buffers that are not only other values: what forward has made or replaced, in the saved state or here.

    Raises:
        SettingError: a buffer differs that forward has not made.
    """
    first, own = step.at_first.shapes, _named_tensors(step.model)["buffers"]
    buffers: dict[str, Tensor | None] = {}
    for name in own.keys() | saved.keys():
        mine, its = own.get(name), saved.get(name)
        alike = mine is not None and its is not None and mine.shape == its.shape
        if mine is not None and alike and 0 not in mine.stride():  # what is expanded cannot be written to
            continue
        began = at_first.get(name, None if its is None else its.shape)
        if (None if began is None else tuple(began)) == first.get(name):
            buffers[name] = its
    _check_same(
        {name: each for name, each in own.items() if name not in buffers},
        {name: each for name, each in saved.items() if name not in buffers},
        "buffers",
    )
    return buffers


def _set_buffers(step: SavedStep, buffers: Mapping[str, Tensor | None]) -> None:
    """Put buffers in place of others, where nothing was, or nothing where one was."""
    for name, saved in buffers.items():
        owner = step.model.get_submodule(_owner(name))
        leaf = name.rpartition(".")[2]
        vars(owner).update(step.at_first.values[_owner(name)])
        if saved is not None:
            vars(owner).pop(leaf, None)
            owner._buffers[leaf] = saved.detach().to(step.device, copy=True)
            owner._non_persistent_buffers_set.discard(leaf)
        elif name in step.at_first.shapes:
            owner._buffers[leaf] = None
        else:
            del owner._buffers[leaf]


def _check_extra_states(model: nn.Module, saved: Mapping[str, Any]) -> None:
    differing = {name for name, module in model.named_modules() if has_extra_state(module)} ^ set(saved)
    if differing:
        names = ", ".join(f"'{name}'" for name in sorted(differing)[:5])
        raise SettingError(
            "model",
            f"extra state is kept by other modules than in the saved state: {names}",
            "Give the model that was saved.",
        )


def _check_same(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], kind: str) -> None:
    differing = set(own) ^ set(saved)
    for name in set(own) & set(saved):
        if own[name].shape != saved[name].shape or own[name].dtype != saved[name].dtype:
            differing.add(name)
    if differing:
        names = ", ".join(sorted(differing)[:5])
        raise SettingError(
            "model",
            f"its {kind} are not those of the saved state, by name or shape: {names}",
            "Give the model that was saved.",
        )
