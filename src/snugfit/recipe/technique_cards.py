"""The cards of all techniques, with their settings as a recipe names them: as plain values, a list and a page. `techniques/__init__` finds the techniques."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.core.entry import as_entry
from snugfit.core.settings import shown, wanted
from snugfit.recipe.entries import own_key, settings_of
from snugfit.recipe.presets import find_preset, preset_names, presets

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

Card = Mapping[str, Any]

OF_OTHERS = "of other packages (not imported; named in a recipe, they are code that needs consent)"


def cards(name: str | None = None) -> list[Card]:
    """Return the cards of all techniques of Snugfit's, or of one of any origin, as plain values.

    Args:
        name: of a technique, or an alias; one that is not Snugfit's is imported, by its path from the current directory or by its entry point.
    Raises:
        SettingError: there is no technique of that name, and the nearest one or preset is given; or it cannot be used.
    """
    from snugfit.techniques import discover, find_any

    if name is None:
        return [_card(technique, name) for name, technique in discover().items()]
    technique = find_any(name, Path.cwd(), preset_names())
    return [_card(technique, technique.card.name if technique.card.name in discover() else name)]


def listed() -> list[Card]:
    """Return the techniques that installed packages list, as plain values: name, package, path, and why a recipe cannot name one so, if it cannot.

    None of them is imported.
    """
    from snugfit.techniques import discover
    from snugfit.techniques.plugins import TECHNIQUES

    return [*TECHNIQUES.listed(discover())]


def _card(technique: type[Technique], written: str) -> Card:
    """Return the card of a technique, which a recipe names as `written`."""
    from snugfit.core.selection import exclusion
    from snugfit.techniques import discover
    from snugfit.techniques.plugins import example_of

    card = technique.card
    (example,) = as_entry(example_of(technique)).values()
    settings = {
        setting: {
            "type": wanted(annotation),
            **({"example": example[setting]} if default is dataclasses.MISSING else {"default": default}),
        }
        for setting, (annotation, default) in settings_of(technique).items()
    }
    return {
        "name": card.name,
        "written": written,
        "key": own_key(technique) or "techniques",
        "summary": card.summary,
        "aliases": list(card.aliases),
        "about": inspect.cleandoc(technique.__doc__ or "").split("\n\n>>>")[0],
        "family": str(card.family),
        "seams": list(card.seams),
        "stages": {stage.seam: stage.name.lower() for stage in card.stages},
        "kind": str(card.kind),
        "couples_examples": card.couples_examples,
        "conflicts": {
            other.card.name: reason
            for other in discover().values()
            if other is not technique and (reason := exclusion(card, other.card)) is not None
        },
        "not_on": dict(card.not_on),
        "cost": card.cost,
        "measured": measured_costs()["techniques"].get(card.name),
        "use_when": card.use_when,
        "source": card.source,
        "settings": settings,
    }


def listing(own_cards: Sequence[Card], others: Sequence[Card] = ()) -> str:
    """Return all techniques, one a line, under the recipe's key that takes them.

    Args:
        others: those that installed packages list, as `listed` gives them.
    """
    lines: list[str] = []
    width = max(map(len, [*(card["name"] for card in (*own_cards, *others)), *preset_names()]))
    for key in dict.fromkeys(card["key"] for card in sorted(own_cards, key=lambda card: _rank(card["key"]))):
        lines.append(f"{key}:")
        lines += [f"  {card['name']:<{width}}  {card['summary']}" for card in own_cards if card["key"] == key]
        lines.append("")
    if others:
        lines += [f"{OF_OTHERS}:", *(f"  {line}" for line in lines_of_others(others, width)), ""]
    lines.append("preset:")
    lines += [f"  {name:<{width}}  {preset.about}" for name, preset in presets().items()]
    return "\n".join([*lines, "", "One of them with its settings: snugfit techniques NAME"])


def lines_of_others(others: Sequence[Card], width: int) -> list[str]:
    """Return plugins that installed packages list, one a line, with names as wide as those of ours."""
    return [
        f"{each['name']:<{width}}  {each['package']}, {each['path']}"
        + (f", refused: {each['refused']}" if each["refused"] else "")
        for each in others
    ]


def page(card: Card) -> str:
    """Return one technique in full."""
    lines = [f"{card['name']}: {card['summary']}", ""]
    rows = [
        ("elsewhere", ", ".join(card["aliases"])),
        ("use when", card["use_when"]),
        ("cost", card["cost"]),
        ("measured", _cost(card["measured"])),
    ]
    rows += [("place", f"{stage} in the chain of {seam}") for seam, stage in card["stages"].items()]
    if card["kind"] != "any":
        rows.append(("needs", card["kind"]))
    rows.append(("source", card["source"]))
    for reason in dict.fromkeys(card["conflicts"].values()):
        others = ", ".join(other for other, why in card["conflicts"].items() if why == reason)
        rows.append(("not with", f"{others}: they {reason}"))
    rows += [("not on", f"{device}: {reason}") for device, reason in card["not_on"].items()]
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


def preset_card(name: str) -> Card | None:
    """Return what a preset holds, as plain values; None if there is none of that name."""
    preset = find_preset(name) if name in preset_names() else None
    return None if preset is None else {"name": name, **dataclasses.asdict(preset)}


def preset_page(card: Card) -> str:
    """Return one preset in full: what stands where a recipe says nothing."""
    lines = [f"{card['name']}: {card['about']}", "", f"  source    {card['source']}", "", "Stands for:"]
    lines += [f"  {key}: {_flow(card[key])}" for key in ("optimizer", "schedule", "techniques")]
    return "\n".join([*lines, "", "In a recipe:", f"  preset: {card['name']}"])


def measured_costs() -> Mapping[str, Any]:
    """Return what benchmarks/technique_costs measured."""
    table = resources.files("snugfit.techniques").joinpath("costs.json")
    costs: Mapping[str, Any] = json.loads(table.read_text(encoding="utf-8"))
    return costs


def _cost(measured: Mapping[str, Any] | None) -> str:
    if measured is None:
        return ""
    time, memory = measured["time"], measured["memory_in_weights"]
    return (
        f"{time['median']:.2f} × the time of an update [{time['low']:.2f}, {time['high']:.2f}], {memory:+.1f} × the weights "
        f"in tensors (a small net on {measured['on']}, one CPU thread, {measured['settings']})"
    )


def _example(card: Card) -> str:
    settings = card["settings"]
    given = {name: setting["example"] for name, setting in settings.items() if "example" in setting}
    values = {name: setting["default"] for name, setting in settings.items() if "default" in setting}
    inner = ", ".join(
        f"{name}: {_flow(value)}" for name, value in (given or dict(list(values.items())[:2])).items()
    )
    name = _flow(card["written"])
    entry = f"{{{name}: {{{inner}}}}}" if inner else name
    if card["key"] == "plan.numerics":
        return f"plan: {{numerics: {entry}}}"
    return f"techniques: [{entry}]" if card["key"] == "techniques" else f"{card['key']}: {entry}"


def _flow(value: Any) -> str:
    """Return a value as it is written within one line of YAML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return value if value.isidentifier() else f"'{value}'"
    return json.dumps(value)


def _rank(key: str) -> int:
    return ("optimizer", "schedule", "plan.numerics", "techniques").index(key)
