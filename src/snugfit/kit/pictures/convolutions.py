"""Convolutions over images in a model: which of them a technique changes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_modules


def convolutions(
    model: nn.Module, patterns: Sequence[str], setting: str, min_channels: int = 1
) -> dict[str, nn.Conv2d]:
    """Return the convolutions that the patterns name, or all with as many channels on both sides; each once, by its first name.

    Args:
        setting: full name of the patterns, for messages.
    Raises:
        SettingError: a pattern matches none.

    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3))
    >>> list(convolutions(model, (), "my.convs", min_channels=8)), list(convolutions(model, ["0"], "my.convs"))
    (['1'], ['0'])
    """
    wanted = find_modules(model, patterns, setting, nn.Conv2d)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d)
        and (name in wanted if patterns else min(module.in_channels, module.out_channels) >= min_channels)
    }


def no_convolution(setting: str, model: nn.Module, wanted: str) -> SettingError:
    """Return the error of a technique that has nothing to change.

    Args:
        wanted: kind of convolution, such as "with 16 channels on both sides".
    """
    all_names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    known = (
        f"it has {', '.join(all_names[:8])}{', …' if len(all_names) > 8 else ''}"
        if all_names
        else "it has none"
    )
    return SettingError(
        setting,
        f"has nothing to change: the model has no nn.Conv2d {wanted}; {known}",
        "Name some, or remove it.",
    )
