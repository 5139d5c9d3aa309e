"""Models and batches of tensors that have a shape and no numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from snugfit.core.batch import Batch
from snugfit.core.tree import map_tree
from snugfit.planner.values import KnownValues


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of `model` on the meta device, where tensors hold nothing; those that are shared stay shared.

    >>> skeleton(nn.Linear(2, 1)).weight
    Parameter containing:
    tensor(..., device='meta', size=(1, 2), requires_grad=True)
    """
    memo: dict[int, Any] = {}
    for tensor in _tensors(model):
        if id(tensor) not in memo:
            memo[id(tensor)] = _like(tensor, lambda plain: plain.detach().to("meta"))
    return copy.deepcopy(model, memo)


def fake_(model: nn.Module, mode: FakeTensorMode, device: torch.device | str) -> nn.Module:
    """Replace each parameter and buffer of a model by a fake one on `device`; what is shared stays shared.

    Not by `Module.to`, which cannot exchange the parameters of fake models.
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
        values.learn(made, tensor)
        return made

    with unset_fake_temporarily():
        return replace(batch, data=map_tree(fake, batch.data))


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        held = chain(module._parameters.values(), module._buffers.values())
        yield from (tensor for tensor in held if tensor is not None)


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
