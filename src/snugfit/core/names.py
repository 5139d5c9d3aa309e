"""Modules and parameters of a model by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from snugfit.errors import SettingError, nearest

HEADS = ("classifier", "score", "lm_head", "head", "heads", "fc")
"""What transformers, torchvision and timm call the last layer of a model."""


def matches(name: str, pattern: str) -> bool:
    """Whether the pattern is of the whole name or of its end, from a dot on; `*` stands for anything.

    >>> [matches("encoder.layer.0.query", pattern) for pattern in ("query", "layer.*.query", "uery", "layer")]
    [True, True, False, False]
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def find_modules(model: nn.Module, patterns: Sequence[str], setting: str) -> list[str]:
    """Names of the modules that match one of the patterns, in the model's order.

    Raises:
        SettingError: a pattern matches none; the nearest names are given.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise _matches_nothing(pattern, names, setting, "module")
    return [name for name in names if any(matches(name, pattern) for pattern in patterns)]


def find_parameters(model: nn.Module, patterns: Sequence[str], setting: str) -> list[str]:
    """Names of the parameters that match one of the patterns themselves or lie in a module that does.

    A shared parameter goes by its first name, and is found under each of its names.

    Raises:
        SettingError: a pattern matches none; the nearest names are given.
    """
    first: dict[int, str] = {}
    places: dict[str, None] = {}
    used: set[str] = set()
    found: dict[str, None] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        for place in around(name):
            places[place] = None
            for pattern in patterns:
                if matches(place, pattern):
                    used.add(pattern)
                    found[own] = None
    for pattern in patterns:
        if pattern not in used:
            raise _matches_nothing(pattern, list(places), setting, "module or parameter")
    return list(found)


def find_head(model: nn.Module, setting: str) -> tuple[str, ...]:
    """The names under `model` itself that are those of a head by convention.

    Raises:
        SettingError: there is none.
    """
    names = [name for name, _ in model.named_children()]
    found = tuple(name for name in names if name in HEADS)
    if not found:
        raise SettingError(
            f"{setting}: the model has no head by name ({', '.join(HEADS)}). Say which modules are meant; it has: "
            f"{', '.join(names) or 'none'}."
        )
    return found


def around(name: str) -> Iterator[str]:
    """The name itself and those of the modules around it, the nearest first.

    >>> list(around("a.b.weight"))
    ['a.b.weight', 'a.b', 'a']
    """
    while name:
        yield name
        name = name.rpartition(".")[0]


def _matches_nothing(pattern: str, names: Sequence[str], setting: str, kind: str) -> SettingError:
    ends = dict.fromkeys(name.rpartition(".")[2] for name in names)
    hint = nearest(pattern.strip("*."), [*ends, *names])
    if hint.startswith("Known"):  # all the full names would be a page
        hint = nearest(pattern, ends)
    return SettingError(f"{setting}: '{pattern}' matches no {kind} of the model. {hint}")
