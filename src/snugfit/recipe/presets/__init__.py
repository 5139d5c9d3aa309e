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


def preset_names() -> list[str]:
    """Return the names of all presets."""
    files = (file.name.rpartition(".") for file in resources.files(__name__).iterdir())
    return sorted(name for name, _, suffix in files if suffix == "yaml")


def presets() -> Mapping[str, Preset]:
    """Return all presets by name."""
    return {name: find_preset(name) for name in preset_names()}


@functools.cache
def find_preset(name: str) -> Preset:
    """Return a preset by name; only its file is read.

    Raises:
        SettingError: there is none; the nearest name is given.
    """
    known = preset_names()
    if name not in known:
        raise SettingError("preset", f"there is no preset '{name}'", nearest(name, known))
    file = f"{name}.yaml"
    text = resources.files(__name__).joinpath(file).read_text(encoding="utf-8")
    return Preset(**read_yaml(text, file, Places(file)))


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
