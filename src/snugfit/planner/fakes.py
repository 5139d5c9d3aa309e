"""Models and batches of tensors that have a shape and no numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import ModelError, SettingError
from snugfit.planner.values import KnownValues


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of `model` on the meta device, where tensors hold nothing; those that are shared stay shared.

    What a module holds besides is copied too, or where that cannot be, such as a lock, is the model's own.

    Raises:
        ModelError: a parameter has no shape yet, or is held outside of Python.

    >>> skeleton(nn.Linear(2, 1)).weight
    Parameter containing:
    tensor(..., device='meta', size=(1, 2), requires_grad=True)
    """
    _check(model)
    memo = _bare(model)
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                # neither parameter nor buffer, and often no leaf; a forward may write to it
                memo.setdefault(id(value), value.detach().clone())
    try:
        return copy.deepcopy(model, dict(memo))
    except Exception:  # noqa: BLE001 - a class that cannot be copied may say so in any way
        return copy.deepcopy(model, {**memo, **_uncopied(model, memo)})


@dataclass(frozen=True)
class BareOptimizer:
    """A torch optimizer without its numbers, and the names of the parameters that it holds; made of a real one."""

    optimizer: torch.optim.Optimizer
    names: Mapping[str, nn.Parameter]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> BareOptimizer:
        """The optimizer of a model's parameters, or of some of them, on the meta device.

        Raises:
            SettingError: it holds a parameter that is not the model's.
        """
        own = {id(parameter) for parameter in model.parameters()}
        foreign = sum(id(each) not in own for group in optimizer.param_groups for each in group["params"])
        if foreign:
            raise SettingError(
                f"optimizer: {foreign} of its parameters are not of the model. Make it from model.parameters()."
            )
        memo = _bare(model)
        names = {name: memo[id(parameter)] for name, parameter in model.named_parameters()}
        for state in optimizer.state.values():
            for value in leaves(state):
                if value.ndim:  # numbers, such as how many steps there were, are read by the step
                    memo[id(value)] = value.detach().to("meta")
        return cls(_copied(optimizer, memo), names)

    def on(self, model: nn.Module, mode: AbstractContextManager[Any]) -> torch.optim.Optimizer:
        """The optimizer of a model's tensors, with states of zeros beside them that are made within `mode`."""
        parameters = dict(model.named_parameters())
        memo: dict[int, Any] = {id(bare): parameters[name] for name, bare in self.names.items()}
        for bare, state in self.optimizer.state.items():
            for value in leaves(state):
                memo[id(value)] = _fake_state(value, memo[id(bare)].device, mode)
        with _disable_current_modes():  # tensors of its own are copied as they are
            return _copied(self.optimizer, memo)


def fake_(model: nn.Module, mode: AbstractContextManager[Any], device: torch.device | str) -> nn.Module:
    """Replace each parameter and buffer of a model by one on `device` that is made within `mode`, such as a mode of fake tensors; what is
    shared stays shared.

    Not by `Module.to`, which cannot exchange the parameters of fake models, and makes two of one that is shared on the meta device.
    """
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = _like(tensor, on_device)
        return made[id(tensor)]

    def on_device(plain: Tensor) -> Tensor:
        with mode:
            return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device=device)

    with unset_fake_temporarily():
        for module in model.modules():
            for held in (module._parameters, module._buffers):
                for name, tensor in held.items():
                    if tensor is not None:
                        held[name] = fake(tensor)  # type: ignore[assignment]
    return model


def fake_batch(batch: Batch, mode: FakeTensorMode, values: KnownValues) -> Batch:
    """A batch of fake tensors on the host; lengths that were read of the real ones stay, and so do the values of integers."""

    def fake(tensor: Tensor) -> Tensor:
        made = mode.from_tensor(tensor)
        if not tensor.is_floating_point() and not tensor.is_complex():
            values.learn(made, tensor.clone())  # which a model may write to
        return made

    with unset_fake_temporarily():
        return replace(batch, data=map_tree(fake, batch.data))


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        held = chain(module._parameters.values(), module._buffers.values())
        yield from (tensor for tensor in held if tensor is not None)


def _check(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"model: '{name or type(module).__name__}' is a TorchScript module, which keeps its tensors outside of Python. Plan "
                "the module that it was made of."
            )
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                f"model: '{name}' has no shape yet, as its layer is lazy. Run the model once on a batch before it is planned."
            )


def _bare(model: nn.Module) -> dict[int, Any]:
    """For each parameter and buffer of a model, by its id, the same on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(model):
        if id(tensor) not in memo:
            memo[id(tensor)] = _like(tensor, lambda plain: plain.detach().to("meta"))
    return memo


def _uncopied(model: nn.Module, memo: Mapping[int, Any]) -> dict[int, Any]:
    """What modules hold that no copy can be made of, by its id."""
    found: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                copy.deepcopy(value, {**memo, id(module): module})
            except Exception:  # noqa: BLE001
                found[id(value)] = value
    return found


def _fake_state(value: Tensor, device: torch.device, mode: AbstractContextManager[Any]) -> Tensor:
    with unset_fake_temporarily():
        number = None if value.is_meta else value.item()
    with mode:
        if number is not None:
            return torch.tensor(number, dtype=value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).zero_()


def _copied(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """A copy of an optimizer, with what its class keeps beside groups and states."""
    made = copy.deepcopy(optimizer, memo)
    for name, value in vars(optimizer).items():
        if (
            name not in vars(made) and name != "step"
        ):  # which a scheduler binds to the optimizer it was made for
            setattr(made, name, copy.deepcopy(value, memo))
    return made


def _like(tensor: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor of the same kind, whose plain parts are `made` anew."""
    new: Tensor
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        parts = {name: _like(getattr(tensor, name), made) for name in names}
        new = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    else:
        new = made(tensor)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new
