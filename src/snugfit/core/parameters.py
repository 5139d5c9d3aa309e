"""Parameter groups."""

from __future__ import annotations

from typing import Any

from torch import nn

ParameterGroup = dict[str, Any]


def takes_decay(parameter: nn.Parameter) -> bool:
    """Whether weight decay makes sense: a matrix (or more), not a bias, norm scale or class token.

    Goes by shape, not by name: `bn.weight` and `norm1.weight` escape rules that go by name.

    >>> import torch
    >>> [takes_decay(nn.Parameter(torch.zeros(s))) for s in [(4, 3), (4,), (1, 1, 4)]]
    [True, False, False]
    """
    return parameter.ndim >= 2 and parameter.numel() > max(parameter.shape)


def parameter_groups(model: nn.Module) -> list[ParameterGroup]:
    """Two groups, `decay` and `no_decay`, each parameter once, by name.

    The first leaves the weight decay to the optimizer's setting, the second sets it to 0. Frozen parameters
    are included: an optimizer passes over them while they have no gradient, and they train once unfrozen.
    """
    decay: ParameterGroup = {"name": "decay", "params": []}
    no_decay: ParameterGroup = {"name": "no_decay", "params": [], "weight_decay": 0.0}
    for name, parameter in model.named_parameters():
        (decay if takes_decay(parameter) else no_decay)["params"].append((name, parameter))
    return [group for group in (decay, no_decay) if group["params"]]
