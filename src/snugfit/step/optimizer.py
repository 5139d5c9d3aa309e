"""The optimizer of a step, and the rates of its parameter groups."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snugfit.core.composition import Composition
from snugfit.core.parameters import momentum_of, parameter_groups, set_momentum
from snugfit.core.schedule import Rates
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.kit.optimizers.state_layout import laid_out_like
from snugfit.kit.sharded_tensors import spread_state


def make_optimizer(
    given: torch.optim.Optimizer | Technique | None,
    seams: Composition,
    model: nn.Module,
    added: Mapping[str, nn.Parameter],
) -> torch.optim.Optimizer:
    """Return the optimizer of a step: the one that is given, or the techniques' from their parameter groups.

    Args:
        added: parameters by name that techniques added to the model.
    Raises:
        SettingError: none is given, or two, or one that does not hold what is to be trained, or that has no momentum
            where the schedule moves it in any update.
    """
    if isinstance(given, torch.optim.Optimizer):
        optimizer = _checked(given, seams, model, added)
        for group in optimizer.param_groups:  # its rate stays: somebody's own scheduler may have set it
            group.setdefault("initial_lr", group["lr"])
    else:
        optimizer = _made(seams, model)
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"] = group["lr"] * group.get("lr_factor", 1.0)
    if isinstance(seams.schedule, Rates):
        for group in filter(seams.schedule.moves_momentum, optimizer.param_groups):
            if "initial_momentum" not in group:
                group["initial_momentum"] = _momentum_to_move(group)
    return optimizer


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state, each tensor laid out in memory like its parameter.

    Torch's fused kernels walk through parameter and moment side by side, whatever their strides; a moment that was saved
    contiguous would be paired with the wrong elements of a parameter that is not.

    Raises:
        SettingError: the state is of another optimizer.
    """
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise SettingError(
            "optimizer", f"the state is of another one: {error}", "Use the optimizer that saved it."
        ) from error
    for parameter, parameter_state in optimizer.state.items():
        optimizer.state[parameter] = laid_out_like(parameter, spread_state(parameter, parameter_state))


def set_rates(optimizer: torch.optim.Optimizer, seams: Composition, updates: int) -> None:
    """Set what the schedule says for the update that follows `updates` applied ones."""
    if seams.schedule is None:
        return
    for group in optimizer.param_groups:
        rate = seams.schedule(updates, group)
        group["lr"] = group["initial_lr"] * rate.factor
        momentum = group.get("initial_momentum") if rate.momentum is None else rate.momentum
        if momentum is not None:
            set_momentum(group, momentum)


def learning_rates(optimizer: torch.optim.Optimizer) -> tuple[float, dict[str, float]]:
    """Return the highest, and each group's by its name if they differ."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        return groups[0]["lr"], {}
    rates = [group["lr"] for group in groups]
    if rates.count(rates[0]) == len(rates):
        return rates[0], {}
    names = [group.get("name", f"group {place}") for place, group in enumerate(groups)]
    return max(rates), dict(zip(names, rates, strict=True))


def _momentum_to_move(group: dict[str, Any]) -> float:
    momentum = momentum_of(group)
    if not momentum:
        raise SettingError(
            "schedule",
            "moves the momentum, and the optimizer has "
            f"{('none' if momentum is None else 'one of 0, which is none')}",
            "Give the optimizer a momentum, choose another of the two, or let the schedule leave it alone "
            "(momentum: null).",
        )
    return momentum


def _made(seams: Composition, model: nn.Module) -> torch.optim.Optimizer:
    if seams.make_optimizer is None:
        raise SettingError(
            "optimizer", "none given", "Pass a torch optimizer, or a technique such as AdamW()."
        )
    make = seams.stepping(seams.make_optimizer)
    return make(seams.groups(parameter_groups(model)))


def _checked(
    given: torch.optim.Optimizer, seams: Composition, model: nn.Module, added: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    if seams.regroup:
        raise SettingError(
            "optimizer",
            f"'{seams.regroup[0]}' has a say in how the optimizer is made, and a torch optimizer is made already",
            f"Give the optimizer as a technique, such as AdamW(), or remove '{seams.regroup[0]}'.",
        )
    if seams.make_optimizer is not None:
        raise SettingError("optimizer", "given twice, as a torch optimizer and as a technique", "Remove one.")
    closure = inspect.signature(type(given).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SettingError(
            "optimizer",
            f"{type(given).__name__} evaluates the loss as often as it likes, and a step computes each window's "
            "gradient once",
            "Give another one, such as AdamW().",
        )
    own = {id(parameter) for parameter in model.parameters()}
    foreign = sum(id(parameter) not in own for group in given.param_groups for parameter in group["params"])
    if foreign:
        raise SettingError(
            "optimizer",
            f"{foreign} of its parameters are not of the model, so their gradients would be neither divided nor "
            "cleared, and no checkpoint would hold them",
            "Make it from model.parameters(); put parameters of the loss into the model.",
        )
    held = {id(parameter) for group in given.param_groups for parameter in group["params"]}
    left_out = [name for name, parameter in added.items() if id(parameter) not in held]
    if left_out:
        raise SettingError(
            "optimizer",
            f"it was made before techniques added {len(left_out)} parameters to the model, such as '{left_out[0]}', "
            "and would not train them",
            "Give the optimizer as a technique, such as AdamW().",
        )
    return given
