"""Parameter groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from snugfit.errors import SettingError

ParameterGroup = dict[str, Any]


def takes_decay(parameter: nn.Parameter) -> bool:
    """Whether weight decay makes sense: a matrix (or more), not a bias, norm scale or class token.

    Goes by shape, not by name: `bn.weight` and `norm1.weight` escape rules that go by name.

    >>> import torch
    >>> [takes_decay(nn.Parameter(torch.zeros(s))) for s in [(4, 3), (4,), (1, 1, 4)]]
    [True, False, False]
    """
    return parameter.ndim >= 2 and parameter.numel() > max(parameter.shape)


def momentum_of(group: ParameterGroup) -> float | None:
    """The momentum of a parameter group, which Adam and its kin keep as the first of `betas`; None where it has none."""
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
            "schedule: moves the momentum, and the optimizer has neither momentum nor betas. Choose another of the two."
        )


def divided(
    groups: list[ParameterGroup], part_of: Callable[[str, nn.Parameter], str | None]
) -> list[tuple[str | None, ParameterGroup]]:
    """Each group cut by what `part_of` says of its parameters; None leaves them together under the group's own name.

    Returns:
        The part and the new group, in the order in which the parameters first belong to it.
    """
    found: list[tuple[str | None, ParameterGroup]] = []
    for group in groups:
        parts: dict[str | None, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in group["params"]:
            parts.setdefault(part_of(name, parameter), []).append((name, parameter))
        for part, params in parts.items():
            name = group["name"] if part is None else f"{part} {group['name']}"
            found.append((part, {**group, "name": name, "params": params}))
    return found


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
