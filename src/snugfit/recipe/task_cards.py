"""The cards of all tasks, as plain values, a list and a page: what each learns, what it reads of a recipe, and what comes of it. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.reference import entries
from snugfit.recipe.technique_cards import OF_OTHERS, lines_of_others
from snugfit.system.plugins import Importer
from snugfit.tasks import discover, find, import_task, registered
from snugfit.tasks.plugins import TASKS
from snugfit.tasks.task_card import Card

Facts = Mapping[str, Any]
_MODELS = {
    **dict.fromkeys(
        ("encoder", "decoder", "encoder-decoder", "pictures", "sounds"), "a Hugging Face name or folder"
    ),
    "own": "what the task makes of it",
    "table": "tabm, mlp, or a JSON file with the settings of one",
    "series": "tide, or a JSON file with its settings",
    "masks": "unet, a JSON file with its settings, or a Hugging Face or torchvision name or folder",
}
_PLACES = dict.fromkeys(("pictures", "sounds", "masks"), "FOLDER")


def tasks(name: str | None = None) -> list[Facts]:
    """Return the facts of all tasks of Snugfit's, or of one of any origin, as plain values.

    Args:
        name: of a task; one that is not Snugfit's is imported, by its path from the current directory or by its entry point.
    Raises:
        SettingError: there is no task of that name, and the nearest one is given; or it cannot be used.
    """
    cards = discover()
    if name is None or name in cards:
        return [_facts(card) for card in cards.values() if name in (None, card.name)]
    path = import_task(name, Importer(folder=Path.cwd(), allowed=True))
    if path is None:
        known = [*cards, *TASKS.entry_points()]
        raise SettingError("tasks", f"there is no task '{name}'", nearest(name, known))
    return [_facts(find(path), path)]


def listed() -> list[Facts]:
    """Return the tasks that installed packages list, as plain values; none of them is imported."""
    return [*TASKS.listed(discover())]


def _facts(card: Card, written: str = "") -> Facts:
    """Return the facts of a card; `written` is the path by which a recipe names one that is not Snugfit's."""
    meanings = {entry.key: entry.meaning for entry in entries("data")}
    return {
        "name": card.name,
        "summary": card.summary,
        "loss": card.loss,
        "metrics": list(card.metrics),
        "model": _MODELS[card.model] if not card.own_code else "package.module:function",
        "rows": card.rows,
        "begin": f"task: {written}"
        if written
        else f"snugfit init {'SCRIPT' if card.own_code else _PLACES.get(card.model, 'ROWS')} task={card.name}",
        "predicts": card.predicts_files,
        "registered": card.name in registered(),
        "planned_without_weights": card.load_empty is not None,
        "settings": {f"data.{each}": meanings[f"data.{each}"] for each in card.data_settings},
    }


def listing(facts: Sequence[Facts], others: Sequence[Facts] = ()) -> str:
    """Return all tasks, one a line.

    Args:
        others: those that installed packages list, as `listed` gives them.
    """
    width = max(len(each["name"]) for each in (*facts, *others))
    lines = [f"{each['name']:<{width}}  {each['summary']}" for each in facts]
    if others:
        lines += ["", f"{OF_OTHERS}:"]
        lines += lines_of_others(others, width)
    return "\n".join([*lines, "", "One of them in full: snugfit tasks NAME"])


def page(facts: Facts) -> str:
    """Return one task in full."""
    rows = [
        ("model", facts["model"]),
        ("rows", facts["rows"]),
        ("loss", f"{facts['loss']} by default"),
        ("metrics", ", ".join(facts["metrics"]) or "the loss alone, by default"),
        (
            "then",
            f"snugfit evaluate and predict{', track.register' if facts['registered'] else ''}"
            if facts["predicts"]
            else "the best model's folder",
        ),
    ]
    width = max(map(len, facts["settings"]))
    return "\n".join(
        [
            f"{facts['name']}: {facts['summary']}",
            "",
            *(f"  {label:<8} {text}" for label, text in rows),
            "",
            "Settings of its rows:",
            *(f"  {key:<{width}}  {meaning}" for key, meaning in facts["settings"].items()),
            "",
            "A recipe for what is here:" if facts["begin"].startswith("snugfit") else "In a recipe:",
            f"  {facts['begin']}",
        ]
    )
