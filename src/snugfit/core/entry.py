"""A technique as a recipe writes it; needs neither torch nor the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.system.user_objects import is_python_path

if TYPE_CHECKING:
    from snugfit.core.technique import Technique


def as_entry(technique: Technique) -> dict[str, dict[str, Any]]:
    """Return the name with all settings; techniques within them are written likewise. One of the user's own is named by its path.

    >>> from snugfit.core.technique import Technique
    >>> @dataclasses.dataclass(frozen=True)
    ... class Example(Technique):
    ...     rate: float = 0.5
    >>> Example.card = type("Card", (), {"name": "example", "modules": ()})
    >>> as_entry(Example())
    {'example': {'rate': 0.5}}
    """
    own = entry_name(type(technique))
    if not dataclasses.is_dataclass(technique):  # one of the user's own, without settings
        return {own: {}}
    names = [field.name for field in dataclasses.fields(technique) if field.init]
    return {own: {name: _written(getattr(technique, name)) for name in names}}


def without_unset(technique: Technique, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a technique without those that runs of before do not know, where they are unset: files, and what was added."""
    unknown = {*technique.card.paths, *technique.card.added}
    return {name: value for name, value in settings.items() if value or name not in unknown}


def entry_name(technique: type[Technique]) -> str:
    """Return the name by which a recipe names a technique: that of its card, or `package.module:Class` for one of the user's own.

    A class that cannot be imported by such a path, as it was made in a function, has its card's name.
    """
    path = f"{technique.__module__}:{technique.__qualname__}"
    return technique.card.name if is_ours(technique) or not is_python_path(path) else path


def is_ours(technique: type[Technique]) -> bool:
    """Return whether a technique is one of Snugfit's."""
    return technique.__module__.partition(".")[0] == "snugfit"


def _written(value: Any) -> Any:
    from snugfit.core.technique import Technique

    if isinstance(value, Technique):
        return as_entry(value)
    if isinstance(value, tuple):
        return tuple(_written(entry) for entry in value)
    return {key: _written(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value
