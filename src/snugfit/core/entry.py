"""A technique as a recipe writes it; needs neither torch nor the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit.core.technique import Technique


def as_entry(technique: Technique) -> dict[str, dict[str, Any]]:
    """The name with all settings; techniques within them are written likewise.

    >>> from snugfit.core.technique import Technique
    >>> @dataclasses.dataclass(frozen=True)
    ... class Example(Technique):
    ...     rate: float = 0.5
    >>> Example.card = type("Card", (), {"name": "example"})
    >>> as_entry(Example())
    {'example': {'rate': 0.5}}
    """
    if not dataclasses.is_dataclass(technique):  # one of the user's own, without settings
        return {technique.card.name: {}}
    names = [field.name for field in dataclasses.fields(technique) if field.init]
    return {technique.card.name: {name: _written(getattr(technique, name)) for name in names}}


def _written(value: Any) -> Any:
    from snugfit.core.technique import Technique

    if isinstance(value, Technique):
        return as_entry(value)
    if isinstance(value, tuple):
        return tuple(_written(entry) for entry in value)
    return {key: _written(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value
