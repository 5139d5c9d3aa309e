"""Discovery of tasks: one module, one task, in the folder of the kind of its rows; those of other packages are imported when a recipe names them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path

from snugfit.system.plugins import Importer
from snugfit.system.user_objects import load_object
from snugfit.tasks import python
from snugfit.tasks.plugins import TASKS, check_card
from snugfit.tasks.task_card import Card

_KINDS = ("texts", "pictures", "sounds", "tables")


@functools.cache
def discover() -> Mapping[str, Card]:
    """Return the cards of all tasks by name: the `CARD` of each module of each kind; no heavy library is imported."""
    packages = [importlib.import_module(f"{__name__}.{kind}") for kind in _KINDS]
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}")
        for package in packages
        for each in pkgutil.iter_modules(package.__path__)
    ]
    cards: list[Card] = [module.CARD for module in (*modules, python)]
    return {card.name: card for card in sorted(cards, key=lambda card: card.name)}


def find(name: str) -> Card:
    """Return the card of a task that there is: by name, or by the `package.module:CARD` of one that was imported before."""
    card = known(name)
    assert card is not None, f"no task '{name}' was imported"
    return card


def known(name: str | None) -> Card | None:
    """Return the card of that name or path; None where there is none, or it was not imported before."""
    card = discover().get(name or "") or TASKS.loaded(name or "")
    return card if isinstance(card, Card) else None


def import_task(name: str, importer: Importer) -> str | None:
    """Import the task that a path or an entry point's name stands for, and return its path; None where it is neither.

    Raises:
        CodeRefused: without consent.
        SettingError: it cannot be used.
    """
    own = importer.load(TASKS, name, "task", discover())
    return None if own is None else own[0]


def import_again(name: str, folder: Path | None) -> Card:
    """Return the card of a task by its name or path, in another process than the one where its import was consented to.

    Raises:
        SettingError: it cannot be imported.
    """
    card = known(name)
    if card is not None:
        return card
    return check_card(load_object(name, setting="task", folder=folder), name, "task", discover())


def of_files() -> tuple[str, ...]:
    """Return names of the tasks whose models predict for files of rows."""
    return tuple(name for name, card in discover().items() if card.predicts_files)


def registered() -> tuple[str, ...]:
    """Return names of the tasks whose models are registered, with rows on which they are compared."""
    return tuple(name for name in of_files() if discover()[name].classes or discover()[name].plain_rows)
