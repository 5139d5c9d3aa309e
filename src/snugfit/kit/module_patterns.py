"""Modules, parameters and groups of parameters by patterns of their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from snugfit.core.parameters import ParameterGroup
from snugfit.errors import SettingError, nearest

HEADS = ("classifier", "score", "lm_head", "head", "heads", "fc")
"""What transformers, torchvision and timm call the last layer of a model."""

_SHOWN = 8


def matches(name: str, pattern: str) -> bool:
    """Return whether the pattern is of the whole name or of its end, from a dot on; `*` stands for anything.

    >>> [matches("encoder.layer.0.query", pattern) for pattern in ("query", "layer.*.query", "uery", "layer")]
    [True, True, False, False]
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def matched_by(names: Sequence[str], name: str) -> bool:
    """Return whether a module is one of these, or inside of one."""
    return name in names or name.startswith(tuple(f"{each}." for each in names))


def find_modules(
    model: nn.Module,
    patterns: Sequence[str],
    setting: str,
    kind: type[nn.Module] = nn.Module,
    meant: Sequence[str] = (),
) -> list[str]:
    """Return names of the modules of this kind that match one of the patterns, in the model's order.

    Args:
        meant: names whose ends an error shows; those of a kind are shown without.
    Raises:
        SettingError: a pattern matches none; the nearest names are given.
    """
    require_list(patterns, setting)
    names = [name for name, module in model.named_modules() if name and isinstance(module, kind)]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            known = dict.fromkeys(map(_end, meant or (() if kind is nn.Module else names)))
            what = "module" if kind is nn.Module else kind.__name__
            raise SettingError(
                setting, f"'{pattern}' matches no {what} of the model", nearest_names(pattern, names, known)
            )
    return [name for name in names if any(matches(name, pattern) for pattern in patterns)]


def find_module(model: nn.Module, pattern: str, setting: str, kind: type[nn.Module] = nn.Module) -> nn.Module:
    """Return the one module of this kind that matches the pattern; a whole name is of no other.

    Raises:
        SettingError: there is none, or several.
    """
    names = find_modules(model, [pattern], setting, kind)
    if len(names) > 1 and pattern not in names:
        raise SettingError(
            setting,
            f"'{pattern}' matches {len(names)} modules, such as '{names[0]}' and '{names[1]}', and one is meant",
            "Give more of its name.",
        )
    return model.get_submodule(pattern if pattern in names else names[0])


def find_parameters(model: nn.Module, patterns: Sequence[str], setting: str) -> list[str]:
    """Return names of the parameters that match one of the patterns themselves or lie in a module that does.

    A shared parameter goes by its first name, and is found under each of its names.

    Raises:
        SettingError: a pattern matches none; the nearest names are given.
    """
    require_list(patterns, setting)
    first: dict[int, str] = {}
    places: dict[str, None] = {}
    used: set[str] = set()
    names: dict[str, None] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        own = first.setdefault(id(parameter), name)
        for place in around(name):
            places[place] = None
            for pattern in patterns:
                if matches(place, pattern):
                    used.add(pattern)
                    names[own] = None
    for pattern in patterns:
        if pattern not in used:
            hint = nearest_names(pattern, list(places))
            raise SettingError(setting, f"'{pattern}' matches no module or parameter of the model", hint)
    return list(names)


def find_head(model: nn.Module, setting: str) -> tuple[str, ...]:
    """Return the names under `model` itself that are those of a head by convention.

    Raises:
        SettingError: there is none.
    """
    names = [name for name, _ in model.named_children()]
    heads = tuple(name for name in names if name in HEADS)
    if not heads:
        raise SettingError(
            setting,
            f"the model has no head by name ({', '.join(HEADS)})",
            f"Say which modules are meant; it has: {', '.join(names) or 'none'}.",
        )
    return heads


def is_within(name: str, pattern: str) -> bool:
    """Return whether the pattern is of the parameter itself or of a module that it lies in.

    >>> [is_within("encoder.head.weight", pattern) for pattern in ("head", "*.weight", "encoder.*", "weigh")]
    [True, True, True, False]
    """
    return any(matches(place, pattern) for place in around(name))


def first_pattern(
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


def around(name: str) -> Iterator[str]:
    """Yield the name itself and those of the modules around it, the nearest first.

    >>> list(around("a.b.weight"))
    ['a.b.weight', 'a.b', 'a']
    """
    while name:
        yield name
        name = name.rpartition(".")[0]


def require_list(patterns: Sequence[str], setting: str) -> None:
    """Refuse a string, whose letters would each be a pattern.

    Raises:
        SettingError: it is one.
    """
    if isinstance(patterns, str):
        raise SettingError(
            setting, f"must be a list of patterns, found '{patterns}'", f"Write ['{patterns}']."
        )


def nearest_names(pattern: str, names: Sequence[str], known: Iterable[str] = ()) -> str:
    """Return a hint for a pattern without a match: the nearest name or end of one, else what is known, or the outermost modules.

    >>> nearest_names("encoder.layr.*", ["encoder", "encoder.layer", "head"])
    "Did you mean 'encoder.layer'?"
    >>> nearest_names("zzz", ["encoder", "encoder.layer", "head"])
    'The model has: encoder, head.'
    """
    hint = nearest(pattern.strip("*."), dict.fromkeys([*map(_end, names), *names]))
    if hint.startswith("Did you mean"):
        return hint
    shown = list(known) or list(
        dict.fromkeys(name.partition(".")[0] for name in names)
    )  # all would be a page
    return f"The model has: {', '.join(shown[:_SHOWN]) or 'none'}{', …' if len(shown) > _SHOWN else ''}."


def _end(name: str) -> str:
    return name.rpartition(".")[2]
