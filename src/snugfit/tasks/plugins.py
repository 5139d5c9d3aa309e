"""Tasks of the user's own: what a card has to be that a recipe names, or that an installed package lists."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from snugfit.errors import SettingError
from snugfit.system.plugins import PluginKind
from snugfit.tasks.task_card import Card

_EXAMPLE = "Write CARD = snugfit.tasks.task_card.Card(name=…, …), as `snugfit new task NAME` does."


def check_card(value: Any, path: str, setting: str, ours: Collection[str]) -> Card:
    """Return `value` if it is the card of a task that is not called as one of Snugfit's.

    Raises:
        SettingError: it is not: says what is missing.
    """
    if not isinstance(value, Card):
        raise SettingError(
            setting,
            f"got '{path}', which is a {type(value).__name__}, expected the card of a task",
            _EXAMPLE,
        )
    if value.name in ours:
        raise SettingError(
            setting,
            f"the card of '{path}' is named '{value.name}', as a task of Snugfit's is",
            "Give it another name on the card.",
        )
    return value


TASKS: PluginKind[Card] = PluginKind("task", "snugfit.tasks", check_card, lambda card: card.name)
"""Tasks as plugins."""
