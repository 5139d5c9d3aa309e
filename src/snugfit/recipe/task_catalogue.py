"""The catalogue of tasks: what each learns, what it reads of a recipe, and what comes of it. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.reference import entries
from snugfit.tasks import discover, of_files, registered
from snugfit.tasks.task_card import Card

Facts = Mapping[str, Any]
_MODELS = {
    **dict.fromkeys(("encoder", "decoder", "pictures"), "a Hugging Face name or folder"),
    "table": "tabm, mlp, or a JSON file with the settings of one",
    "series": "tide, or a JSON file with its settings",
    "masks": "unet, or a JSON file with its settings",
}
_PLACES = {"pictures": "FOLDER", "masks": "FOLDER"}
_ROWS = ("train", "validation")
"""Settings of `data` that every task reads."""


def tasks(name: str | None = None) -> list[Facts]:
    """Return the facts of all tasks, or of one, as plain values.

    Raises:
        SettingError: there is no task of that name; the nearest one is given.
    """
    cards = discover()
    if name is not None and name not in cards:
        raise SettingError("tasks", f"there is no task '{name}'", nearest(name, list(cards)))
    return [_facts(card) for card in cards.values() if name in (None, card.name)]


def _facts(card: Card) -> Facts:
    meanings = {entry.key: entry.meaning for entry in entries("data")}
    return {
        "name": card.name,
        "summary": card.summary,
        "loss": card.loss,
        "metrics": list(card.metrics),
        "model": _MODELS[card.model] if not card.own_code else "package.module:function",
        "rows": card.rows,
        "begin": f"snugfit init {'SCRIPT' if card.own_code else _PLACES.get(card.model, 'ROWS')} task={card.name}",
        "predicts": card.name in of_files(),
        "registered": card.name in registered(),
        "planned_without_weights": card.load_empty is not None,
        "settings": {f"data.{each}": meanings[f"data.{each}"] for each in (*_ROWS, *card.settings)},
    }


def listing(facts: Sequence[Facts]) -> str:
    """Return all tasks, one a line."""
    width = max(len(each["name"]) for each in facts)
    lines = [f"{each['name']:<{width}}  {each['summary']}" for each in facts]
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
            "A recipe for what is here:",
            f"  {facts['begin']}",
        ]
    )
