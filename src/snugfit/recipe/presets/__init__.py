"""Named beginnings of a recipe: an optimizer, a schedule and techniques that go together, one file each.

A preset is data like a recipe: it names techniques as a recipe does, and nothing in the code names it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.entries import SEAMS_OF_THEIR_OWN, parse_list, parse_slot
from snugfit.recipe.strict_yaml import Places, read_yaml

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

DEFAULT = "fine_tune"


@dataclass(frozen=True)
class Preset:
    """The beginning of a recipe: entries as a recipe writes them."""

    about: str
    source: str
    optimizer: Mapping[str, Mapping[str, Any]]
    schedule: Mapping[str, Mapping[str, Any]]
    techniques: tuple[Mapping[str, Mapping[str, Any]], ...]


@functools.cache
def presets() -> Mapping[str, Preset]:
    """Return all presets by name."""
    by_name = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        name, _, suffix = file.name.rpartition(".")
        if suffix == "yaml":
            by_name[name] = Preset(
                **read_yaml(file.read_text(encoding="utf-8"), file.name, Places(file.name))
            )
    return by_name


def find_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        SettingError: there is none; the nearest name is given.
    """
    known = presets()
    if name not in known:
        raise SettingError("preset", f"there is no preset '{name}'", nearest(name, known))
    return known[name]


def completed(given: list[Technique], name: str) -> list[Technique]:
    """Return the techniques, and those of the preset whose place is not taken: an optimizer, a schedule, others by name.

    Raises:
        SettingError: there is no such preset.
    """
    preset, places = find_preset(name), Places()
    filled = {seam for technique in given for seam in technique.card.seams}
    slots = (preset.optimizer, preset.schedule)
    added = [
        parse_slot(entry, seam, {}, places)
        for seam, entry in zip(SEAMS_OF_THEIR_OWN, slots, strict=True)
        if seam not in filled
    ]
    names = {technique.card.name for technique in given}
    listed = [
        technique for technique in parse_list(preset.techniques, places) if technique.card.name not in names
    ]
    return [*added, *given, *listed]
