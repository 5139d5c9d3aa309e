"""The modules that get adapters, peft's `target_modules`, and those of a head that train in full beside them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from snugfit.core.layers import is_conv1d, odd_layers, output_layer, stock_heads, unsuitable
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.adapters.adapters import adapted
from snugfit.kit.module_patterns import find_modules, matched_by, matches
from snugfit.kit.quantized.experts import has_experts

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def targets_of(model: nn.Module, patterns: Sequence[str], head: Sequence[str], technique: str) -> list[str]:
    """Return names of the layers to adapt; without patterns every linear layer and convolution that can be.

    Left out without being asked for are what is trained in full, a language model's output layer, a layer that shares
    its weight, and one whose weight torch reads without calling it (the projection in `nn.MultiheadAttention`).

    Raises:
        SettingError: a pattern matches no module or one that cannot be adapted, nothing is left, or the model has adapters.
    """
    if adapted(model):
        raise SettingError(
            "model", "has adapters already", "Merge them first, with snugfit.kit.adapters.adapters.merged."
        )
    setting = f"{technique}.targets"
    reasons = unsuitable(model)
    if not patterns:
        output = output_layer(model)
        within = tuple(f"{name}." for name in head)
        names = [
            name
            for name, module in model.named_modules()
            if name and name not in reasons and module is not output and _is_plain_layer(module)
            if name not in head and not name.startswith(within)
        ]
        if not names:
            why = next(
                (
                    f": '{name}' {reasons[name]}"
                    for name in reasons
                    if name and _is_plain_layer(model.get_submodule(name))
                ),
                "",
            )
            raise SettingError(
                setting,
                f"the model has no linear layer or convolution to adapt{why}",
                "Remove it, or train the model in full.",
            )
        _warn_of_experts(model, technique)
        _warn_of_odd_layers(model, head, technique)
        return names
    able = [name for name, module in model.named_modules() if _is_plain_layer(module) and name not in reasons]
    matched = find_modules(model, patterns, setting, meant=able)
    names = [name for name in matched if name in reasons or _can_be_adapted(model.get_submodule(name))]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            other = next(name for name in matched if matches(name, pattern))
            kind = type(model.get_submodule(other)).__name__
            raise SettingError(
                setting,
                f"'{pattern}' matches '{other}', a {kind}, and no linear layer, convolution or embedding",
                f"Name those in it, such as '{pattern}.*'.",
            )
    for name in names:
        if name in reasons:
            raise SettingError(setting, f"'{name}' {reasons[name]}", "Leave it out.")
        if any(name == each or name.startswith(f"{each}.") for each in head):
            raise SettingError(
                setting, f"'{name}' is trained in full by {technique}.head already", "Remove one."
            )
    return names


def _warn_of_experts(model: nn.Module, technique: str) -> None:
    """Warn where experts, which are one parameter and no layers, are passed by."""
    experts = [name for name, module in model.named_modules() if has_experts(module)]
    if experts:
        more = f" and {len(experts) - 1} more" if len(experts) > 1 else ""
        warnings.warn(
            f"{technique}: experts get no adapters, as they are parameters and no layers: {experts[0]}{more} stay frozen.",
            SnugfitWarning,
            stacklevel=4,
        )


def _warn_of_odd_layers(model: nn.Module, head: Sequence[str], technique: str) -> None:
    """Warn where layers that are more than a weight are passed by, and are not trained in full."""
    odd = {
        name: reason
        for name, reason in odd_layers(model).items()
        if _is_plain_layer(model.get_submodule(name)) and not matched_by(head, name)
    }
    if odd:
        first, reason = next(iter(odd.items()))
        those = (
            f"'{first}' and {len(odd) - 1} more get no adapters and stay"
            if len(odd) > 1
            else f"'{first}' gets no adapter and stays"
        )
        warnings.warn(
            f"{technique}: {those} frozen: '{first}' {reason}. What is to train in full is named in {technique}.head.",
            SnugfitWarning,
            stacklevel=4,
        )


def head_of(model: nn.Module, patterns: Sequence[str] | None, technique: str) -> list[str]:
    """Return names of the modules that train in full beside the adapters; None stands for those of a stock classifier.

    Raises:
        SettingError: a pattern matches nothing, or a module that shares a weight with one that does not train.
    """
    if patterns is None:
        return stock_heads(model)
    setting = f"{technique}.head"
    all_names = find_modules(model, patterns, setting)
    names = [name for name in all_names if not any(name.startswith(f"{other}.") for other in all_names)]
    own = {id(parameter) for name in names for parameter in model.get_submodule(name).parameters()}
    inside = tuple(f"{name}." for name in names)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in own and not name.startswith(inside):
            raise SettingError(
                setting,
                f"a weight of {', '.join(names)} is '{name}' too, which would train with it",
                "Untie them, or leave it out.",
            )
    return names


def _is_plain_layer(module: nn.Module) -> bool:
    """Return a linear layer, transformers' Conv1D, or a convolution that is not over groups of channels."""
    if isinstance(module, _CONVOLUTIONS):
        return module.groups == 1
    return isinstance(module, nn.Linear) or is_conv1d(module)


def _can_be_adapted(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, *_CONVOLUTIONS)) or _is_plain_layer(module)
