"""Parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from snugfit.core.layers import is_conv1d
from snugfit.errors import SettingError

ParameterGroup = dict[str, Any]


def is_matrix(parameter: nn.Parameter) -> bool:
    """Return whether a parameter has more than one row and column, by its shape.

    >>> import torch
    >>> [is_matrix(nn.Parameter(torch.zeros(s))) for s in [(4, 3), (4,), (1, 4), (1, 1, 4)]]
    [True, False, False, False]
    """
    return parameter.ndim >= 2 and parameter.numel() > max(parameter.shape)


def decayed(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters for which weight decay makes sense: weights that multiply what comes in, not biases, scales or class tokens.

    Goes by the module that holds them, not by name: `Linear(n, 1)` and an adapter of rank 1 are decayed, a norm is not, whatever the
    shape of its scale. What a module of another kind holds itself goes by shape.

    >>> model = nn.Sequential(nn.Linear(4, 1), nn.LayerNorm([2, 2]))
    >>> decayed(model) == {model[0].weight}
    True
    """
    return {
        parameter
        for module in model.modules()
        if not isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
        if (parameter.ndim >= 2 and (isinstance(module, _WEIGHTED) or is_conv1d(module)))
        or is_matrix(parameter)
    }


_WEIGHTED = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.EmbeddingBag,
    nn.MultiheadAttention,
    nn.RNNBase,
    nn.RNNCellBase,
    _ConvNd,
)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)


def momentum_of(group: ParameterGroup) -> float | None:
    """Return the momentum of a parameter group, which Adam and its kin keep as the first of `betas`; None where it has none."""
    momentum: float | None = group["betas"][0] if "betas" in group else group.get("momentum")
    return momentum


def set_momentum(group: ParameterGroup, momentum: float) -> None:
    """Set what `momentum_of` gives.

    Raises:
        SettingError: its optimizer has none.
    """
    if "betas" in group:
        group["betas"] = (momentum, *group["betas"][1:])
    elif "momentum" in group:
        group["momentum"] = momentum
    else:
        raise SettingError(
            "schedule",
            "moves the momentum, and the optimizer has neither momentum nor betas",
            "Choose another of the two.",
        )


def divided(
    groups: list[ParameterGroup], part_of: Callable[[str, nn.Parameter], str | None]
) -> list[tuple[str | None, ParameterGroup]]:
    """Return each group cut by what `part_of` says of its parameters; None leaves them together under the group's own name.

    Returns:
        The part and the new group, in the order in which the parameters first belong to it.
    """
    part_groups: list[tuple[str | None, ParameterGroup]] = []
    for group in groups:
        parts: dict[str | None, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in group["params"]:
            parts.setdefault(part_of(name, parameter), []).append((name, parameter))
        for part, params in parts.items():
            name = group["name"] if part is None else f"{part} {group['name']}"
            part_groups.append((part, {**group, "name": name, "params": params}))
    return part_groups


def parameter_groups(model: nn.Module) -> list[ParameterGroup]:
    """Return two groups, `decay` and `no_decay`, each parameter once, by name.

    The first leaves the weight decay to the optimizer's setting, the second sets it to 0. Frozen parameters
    are included: an optimizer passes over them while they have no gradient, and they train once unfrozen.
    """
    decay: ParameterGroup = {"name": "decay", "params": []}
    no_decay: ParameterGroup = {"name": "no_decay", "params": [], "weight_decay": 0.0}
    with_decay = decayed(model)
    for name, parameter in model.named_parameters():
        (decay if parameter in with_decay else no_decay)["params"].append((name, parameter))
    return [group for group in (decay, no_decay) if group["params"]]


def decayed_parameters(groups: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many trained parameters have each weight decay, the largest decay first; empty for an optimizer that has none.

    Args:
        groups: an optimizer's `param_groups`.
    """
    counts: dict[float, int] = {}
    for group in groups:
        if "weight_decay" in group:
            trained = sum(parameter.numel() for parameter in group["params"] if parameter.requires_grad)
            decay = float(group["weight_decay"])
            counts[decay] = counts.get(decay, 0) + trained
    return {f"{decay:g}": count for decay, count in sorted(counts.items(), reverse=True) if count}
