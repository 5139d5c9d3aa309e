"""The place of a model before it trains."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.kit.skeleton import deep_copy


def place_(model: nn.Module, device: torch.device | str, staying: Collection[str] = ()) -> nn.Module:
    """Move a model to `device`, in place, but for the modules of these names and what is in them.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> [parameter.device.type for parameter in place_(model, "meta", ["0"]).parameters()]
    ['cpu', 'cpu', 'meta', 'meta']
    """
    if not staying:
        return model.to(device)
    inside = {id(module) for name in staying for module in model.get_submodule(name).modules()}
    for module in model.modules():
        if id(module) not in inside:
            module._apply(lambda tensor: tensor.to(device), recurse=False)
    return model


def set_data_(parameter: nn.Parameter, tensor: Tensor) -> None:
    """Let a parameter hold another tensor, which may lie on another device: of a fake one torch keeps the device apart."""
    parameter.data = tensor
    if hasattr(tensor, "fake_device"):
        parameter.fake_device = tensor.fake_device  # type: ignore[attr-defined]


def cloned(model: nn.Module) -> nn.Module:
    """Return a copy whose tensors are clones, which do not train: in a dry run they stay of its mode."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach().clone()
    return deep_copy(model, memo)


def host_copy(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """Return a copy of a model, which may lie on several devices, in host memory: the device holds no second one meanwhile.

    Args:
        shared: tensors that the copy has in common with the model, wherever they lie, since others will take their places.

    >>> model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    >>> model[1].weight = model[0].weight
    >>> copied = host_copy(model)
    >>> copied[1].weight is copied[0].weight, copied[0].weight is model[0].weight
    (True, False)
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.device.type not in ("cpu", "meta") and id(tensor) not in memo:
            copied = tensor.detach().to("cpu")
            memo[id(tensor)] = (
                nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
            )
    return deep_copy(model, memo)
