"""Weights of which each of several ranks has read its part alone, before the model is spread over them.

Until then a stand-in is in the place of each: a parameter of its shape that takes no memory, and computes nothing but NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

KeepPart = Callable[[Tensor], Tensor]
"""From a weight to what this rank keeps of it, in memory of its own."""

_PART = "part_of_this_rank"


def stand_in(parameter: nn.Parameter, part: Tensor) -> nn.Parameter:
    """Return a parameter of the same shape, type and attributes that keeps `part` for `emptied_`.

    >>> made = stand_in(nn.Parameter(torch.ones(2, 3)), torch.ones(1, 3))
    >>> made.shape, made.untyped_storage().nbytes()
    (torch.Size([2, 3]), 4)
    """
    nothing = torch.full((), torch.nan, dtype=parameter.dtype).expand(parameter.shape)
    made = nn.Parameter(nothing, parameter.requires_grad)
    vars(made).update({**vars(parameter), _PART: part})
    return made


def is_stand_in(parameter: Tensor) -> bool:
    """Return whether a parameter stands for a weight of which this rank has read its part."""
    return _PART in vars(parameter)


def emptied_(model: nn.Module) -> dict[str, Tensor]:
    """Put parameters on the meta device in the places of stand-ins; gives the parts that they kept, by name.

    >>> model = nn.Linear(3, 2)
    >>> model.weight = stand_in(model.weight, torch.ones(1, 3))
    >>> emptied_(model), model.weight.device.type, model.bias.device.type
    ({'weight': tensor([[1., 1., 1.]])}, 'meta', 'cpu')
    """
    stand_ins = {name: each for name, each in model.named_parameters() if _PART in vars(each)}
    # in the type that a technique may have given them since
    parts = {name: vars(each).pop(_PART).to(each.dtype) for name, each in stand_ins.items()}
    bare = {
        each: nn.Parameter(torch.empty(each.shape, dtype=each.dtype, device="meta"), each.requires_grad)
        for each in stand_ins.values()
    }
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None and held in bare:
                module._parameters[name] = bare[held]
    return parts
