"""Completion in shells of what Snugfit knows by name. It runs at each press of Tab, so it loads no torch."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path


def techniques(incomplete: str) -> list[str]:
    """Return the techniques of Snugfit and its presets whose names begin so."""
    from snugfit.recipe.presets import preset_names

    spec = find_spec("snugfit.techniques")  # which is not imported: one file is one technique
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = (file for folder in folders for file in Path(folder).glob("*/[!_]*.py"))
    return _beginning(incomplete, [*(file.stem for file in files), *preset_names()])


def tasks(incomplete: str) -> list[str]:
    """Return the tasks whose names begin so."""
    from snugfit.tasks import discover

    return _beginning(incomplete, discover())


def settings(incomplete: str) -> list[str]:
    """Return the keys of recipes that begin so."""
    from snugfit.recipe.reference import entries

    return _beginning(incomplete, [entry.key for entry in entries()])


def overrides(incomplete: str) -> list[str]:
    """Return the keys of recipes that begin so, each to be given a value."""
    return [f"{key}=" for key in settings(incomplete)]


def devices(incomplete: str) -> list[str]:
    """Return the devices whose names begin so."""
    from snugfit.planner.devices.data_sheets import SHEETS

    return _beginning(incomplete, ["cpu", "cuda", "mps", *SHEETS])


def links(incomplete: str) -> list[str]:
    """Return the links whose names begin so."""
    from snugfit.planner.devices.data_sheets import LINKS

    return _beginning(incomplete, LINKS)


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
