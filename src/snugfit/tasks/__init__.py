"""Discovery of tasks: one module, one task."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from snugfit.tasks.task_card import Card


@functools.cache
def discover() -> Mapping[str, Card]:
    """Return the cards of all tasks by name: the one `CARD` of each module that has one; no heavy library is imported."""
    modules = (importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__))
    cards: list[Card] = [module.CARD for module in modules if hasattr(module, "CARD")]
    return {card.name: card for card in sorted(cards, key=lambda card: card.name)}


def find(name: str) -> Card:
    """Return the card of a task that there is."""
    return discover()[name]


def of_files() -> tuple[str, ...]:
    """Return names of the tasks whose models predict for files of rows."""
    cards = discover().items()
    return tuple(name for name, card in cards if card.inference is not None and not card.own_code)


def registered() -> tuple[str, ...]:
    """Return names of the tasks whose models are registered, with rows on which they are compared."""
    return tuple(name for name in of_files() if discover()[name].classes or discover()[name].plain_rows)
