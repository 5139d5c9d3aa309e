"""Parameter groups by patterns of the parameters' names; the first pattern that matches counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from snugfit.core.parameters import ParameterGroup
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import around, matches, nearest_names, require_list


def is_within(name: str, pattern: str) -> bool:
    """Return whether the pattern is of the parameter itself or of a module that it lies in.

    >>> [is_within("encoder.head.weight", pattern) for pattern in ("head", "*.weight", "encoder.*", "weigh")]
    [True, True, True, False]
    """
    return any(matches(place, pattern) for place in around(name))


def matching(
    setting: str, patterns: Sequence[str], groups: Sequence[ParameterGroup]
) -> Callable[[str, nn.Parameter], str | None]:
    """Return a function from a parameter to the first pattern that matches it, for `divided`.

    Args:
        setting: the full name of the setting that holds the patterns.
    Raises:
        SettingError: a pattern is the first one of no parameter; gives the nearest names, or the earlier pattern.
    """
    require_list(patterns, setting)
    names = [name for group in groups for name, _ in group["params"]]
    pattern_of = {
        name: next((pattern for pattern in patterns if is_within(name, pattern)), None) for name in names
    }
    for pattern in patterns:
        if pattern in pattern_of.values():
            continue
        earlier = next((pattern_of[name] for name in names if is_within(name, pattern)), None)
        if earlier is not None:
            raise SettingError(
                setting,
                f"all parameters of '{pattern}' match '{earlier}' before it, and the first match counts",
                f"Put '{pattern}' first, or remove it.",
            )
        places = list(dict.fromkeys(place for name in names for place in around(name)))
        raise SettingError(setting, f"'{pattern}' matches no parameter", nearest_names(pattern, places))
    return lambda name, _parameter: pattern_of[name]
