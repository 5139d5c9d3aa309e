"""Models and batches of tensors that have a shape and no numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.core.batch import Batch
from snugfit.core.tree import leaves, map_tree
from snugfit.errors import SettingError
from snugfit.kit.skeleton import bare_tensors, like
from snugfit.planner.trace.known_values import KnownValues


@dataclass(frozen=True)
class BareOptimizer:
    """A torch optimizer without its numbers, and the names of the parameters that it holds; made of a real one."""

    optimizer: torch.optim.Optimizer
    names: Mapping[str, nn.Parameter]

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> BareOptimizer:
        """Return the optimizer of a model's parameters, or of some of them, on the meta device.

        Raises:
            SettingError: it holds a parameter that is not the model's.
        """
        own = {id(parameter) for parameter in model.parameters()}
        foreign = sum(id(each) not in own for group in optimizer.param_groups for each in group["params"])
        if foreign:
            raise SettingError(
                "optimizer",
                f"{foreign} of its parameters are not of the model",
                "Make it from model.parameters().",
            )
        memo = bare_tensors(model)
        names = {name: memo[id(parameter)] for name, parameter in model.named_parameters()}
        for state in optimizer.state.values():
            for value in leaves(state):
                if value.ndim:  # numbers, such as how many steps there were, are read by the step
                    memo[id(value)] = value.detach().to("meta")
        return cls(_copied(optimizer, memo), names)

    def on(self, model: nn.Module, mode: AbstractContextManager[Any]) -> torch.optim.Optimizer:
        """Return the optimizer of a model's tensors, with states of zeros beside them that are made within `mode`."""
        parameters = dict(model.named_parameters())
        memo: dict[int, Any] = {id(bare): parameters[name] for name, bare in self.names.items()}
        for bare, state in self.optimizer.state.items():
            for value in leaves(state):
                memo[id(value)] = _fake_state(value, memo[id(bare)].device, mode)
        with _disable_current_modes():  # tensors of its own are copied as they are
            return _copied(self.optimizer, memo)


def fake_(model: nn.Module, mode: AbstractContextManager[Any], device: torch.device | str) -> nn.Module:
    """Replace each parameter and buffer of a model by one on `device` that is made within `mode`.

    `mode` is for instance a mode of fake tensors. What is shared stays shared.

    Not by `Module.to`, which cannot exchange the parameters of fake models, and makes two of one that is shared on the meta device.
    """
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = like(tensor, on_device)
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
    """Return a batch of fake tensors on the host; lengths that were read of the real ones stay, and so do the values of integers."""

    def fake(tensor: Tensor) -> Tensor:
        made = mode.from_tensor(tensor)
        if not tensor.is_floating_point() and not tensor.is_complex():
            values.learn(made, tensor.clone())  # which a model may write to
        return made

    with unset_fake_temporarily():
        return replace(batch, data=map_tree(fake, batch.data))


def _fake_state(value: Tensor, device: torch.device, mode: AbstractContextManager[Any]) -> Tensor:
    with unset_fake_temporarily():
        number = None if value.is_meta else value.item()
    with mode:
        if number is not None:
            return torch.tensor(number, dtype=value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).zero_()


def _copied(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """Return a copy of an optimizer, with what its class keeps beside groups and states."""
    made = copy.deepcopy(optimizer, memo)
    for name, value in vars(optimizer).items():
        if (
            name not in vars(made) and name != "step"
        ):  # which a scheduler binds to the optimizer it was made for
            setattr(made, name, copy.deepcopy(value, memo))
    return made
