"""Where a model is before it trains."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn


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
            module._apply(lambda tensor: tensor.to(device), recurse=False)  # type: ignore[no-untyped-call]
    return model


def in_one_place_(model: nn.Module) -> nn.Module:
    """Move a model that lies on several devices, as a streamed one does, to host memory, in place.

    >>> in_one_place_(nn.Linear(1, 1, device="meta")).weight.device.type
    'meta'
    """
    devices = {parameter.device for parameter in model.parameters()}
    return model.to("cpu") if len(devices) > 1 else model
