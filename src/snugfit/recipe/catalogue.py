"""What can be written in a recipe: the cards and settings of all techniques."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.entries import own_key, settings_of
from snugfit.recipe.wording import shown, wanted

Card = Mapping[str, Any]


def cards(name: str | None = None) -> list[Card]:
    """The cards of all techniques, or of one, as plain values.

    Raises:
        SettingError: there is no technique of that name.
    """
    from snugfit.techniques import discover

    known = discover()
    if name is not None and name not in known:
        raise SettingError(f"techniques: there is no '{name}'. {nearest(name, known)}")
    found: list[Card] = []
    for technique in known.values() if name is None else [known[name]]:
        card = technique.card
        settings = {
            setting: {
                "type": wanted(annotation),
                **({} if default is dataclasses.MISSING else {"default": default}),
            }
            for setting, (annotation, default) in settings_of(technique).items()
        }
        found.append(
            {
                "name": card.name,
                "key": own_key(technique) or "techniques",
                "summary": card.summary,
                "about": inspect.cleandoc(technique.__doc__ or "").split("\n\n>>>")[0],
                "family": str(card.family),
                "seams": list(card.seams),
                "stages": {stage.seam: stage.name.lower() for stage in card.stages},
                "kind": str(card.kind),
                "couples_examples": card.couples_examples,
                "conflicts": dict(card.conflicts),
                "cost": card.cost,
                "use_when": card.use_when,
                "source": card.source,
                "settings": settings,
            }
        )
    return found


def listing(found: Sequence[Card]) -> str:
    """All techniques, one a line, under the recipe's key that takes them."""
    lines: list[str] = []
    width = max(len(card["name"]) for card in found)
    for key in dict.fromkeys(card["key"] for card in sorted(found, key=lambda card: _rank(card["key"]))):
        lines.append(f"{key}:")
        lines += [f"  {card['name']:<{width}}  {card['summary']}" for card in found if card["key"] == key]
        lines.append("")
    return "\n".join([*lines, "One of them with its settings: snugfit techniques NAME"])


def page(card: Card) -> str:
    """One technique in full."""
    lines = [f"{card['name']}: {card['summary']}", ""]
    rows = [("use when", card["use_when"]), ("cost", card["cost"]), ("source", card["source"])]
    rows += [(f"not with {other}", reason) for other, reason in card["conflicts"].items()]
    if card["couples_examples"]:
        rows.append(("note", "couples the examples of a micro-batch, so plan.micro_batch changes the result"))
    lines += [f"  {label:<9} {text}" for label, text in rows if text]
    settings = card["settings"]
    if settings:
        lines += ["", "Settings:"]
        width = max(len(name) for name in settings)
        for name, setting in settings.items():
            default = (
                f", {shown(setting['default'])} by default" if "default" in setting else ", has to be given"
            )
            lines.append(f"  {name:<{width}}  {setting['type']}{default}")
    return "\n".join([*lines, "", "In a recipe:", f"  {_example(card)}"])


def _example(card: Card) -> str:
    if card["key"] == "plan.numerics":
        return f"plan: {{numerics: {card['name']}}}"
    values = {name: setting["default"] for name, setting in card["settings"].items() if "default" in setting}
    inner = ", ".join(f"{name}: {shown(value)}" for name, value in list(values.items())[:2])
    entry = f"{{{card['name']}: {{{inner}}}}}" if inner else card["name"]
    return f"techniques: [{entry}]" if card["key"] == "techniques" else f"{card['key']}: {entry}"


def _rank(key: str) -> int:
    return ("optimizer", "schedule", "plan.numerics", "techniques").index(key)
