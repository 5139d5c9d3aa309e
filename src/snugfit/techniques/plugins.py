"""Techniques of the user's own: what a class has to be that a recipe names, or that an installed package lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.system.plugins import PluginKind

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

_EXAMPLE = "Derive it from snugfit.Technique, as `snugfit new technique NAME` writes it."


def loaded(path: str) -> type[Technique] | None:
    """Return the technique that `package.module:Class` names if it was imported before in this process."""
    from snugfit.core.technique import Technique

    value = TECHNIQUES.loaded(path)
    return value if isinstance(value, type) and issubclass(value, Technique) else None


def check_technique(value: Any, path: str, setting: str, ours: Collection[str]) -> type[Technique]:
    """Return `value` if it is a technique that a recipe can make.

    Args:
        path: what it was imported as.
        ours: names of Snugfit's own techniques.
    Raises:
        SettingError: it is not: says what is missing.
    """
    from snugfit.core.technique import Card, Technique

    if not isinstance(value, type):
        kind = f"a {type(value).__name__}"
        raise SettingError(
            setting, f"got '{path}', which is {kind}, expected the class of a technique", _EXAMPLE
        )
    if not issubclass(value, Technique):
        raise SettingError(setting, f"got '{path}', a class that is no Technique", _EXAMPLE)
    if not dataclasses.is_dataclass(value):
        raise SettingError(
            setting,
            f"got '{path}', which is no dataclass, so that its settings are not known",
            "Put @dataclass(frozen=True) above it.",
        )
    if not value.__dataclass_params__.frozen:
        raise SettingError(
            setting,
            f"got '{path}', a dataclass that may change during a run",
            "Put @dataclass(frozen=True) above it.",
        )
    card = getattr(value, "card", None)
    if not isinstance(card, Card):
        description = "no card" if card is None else f"a card that is {card!r}"
        raise SettingError(
            setting,
            f"'{path}' has {description}, expected `card: ClassVar[Card] = Card(name=…, summary=…, …)`",
            "Add it to the class.",
        )
    if not card.name.isidentifier():
        raise SettingError(
            setting,
            f"the card of '{path}' is named '{card.name}', expected a name such as 'my_technique'",
            "Rename it on the card.",
        )
    if card.name in ours:
        raise SettingError(
            setting,
            f"the card of '{path}' is named '{card.name}', as a technique of Snugfit's is",
            "Give it another name on the card.",
        )
    return value


def example_of(technique: type[Technique]) -> Technique:
    """Return a technique with its example settings.

    Raises:
        SettingError: it has none, or refuses them.
    """
    name = technique.card.name
    try:
        made = technique.example()
    except SettingError:
        raise
    except Exception as error:  # of the user's own class
        raise SettingError(
            name,
            f"its example settings cannot be made ({type(error).__name__}: {error})",
            "Give every setting a default, or define `example()`, a class method that returns the technique with "
            "settings that matter on a tiny model.",
        ) from error
    if not isinstance(made, technique):
        raise SettingError(
            name, f"example() gave {made!r}, expected a {technique.__name__}", "Return one from it."
        )
    return made


TECHNIQUES: PluginKind[type[Technique]] = PluginKind(
    "technique", "snugfit.techniques", check_technique, lambda technique: technique.card.name
)
"""Techniques as plugins."""
