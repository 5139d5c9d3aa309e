"""Sections of a recipe, read by their declarations: every mistake in them is said at once, each with its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from snugfit.core.other_names import our_name
from snugfit.core.settings import Section, Setting, shown
from snugfit.errors import SettingError, nearest
from snugfit.recipe import declarations as m
from snugfit.recipe.entries import technique_settings
from snugfit.recipe.strict_yaml import Keys, Places

Sections = TypeVar("Sections", bound=Section)


def read_section(section: type[Sections], tree: Mapping[str, Any], places: Places) -> Sections:
    """Return a section with all sections in it, from settings as they were written.

    Raises:
        SettingError: settings are unknown, missing or impossible; a line for each.
    """
    problems: list[SettingError] = []
    instance = _read(section, tree, (), places, problems)
    if instance is None:
        raise SettingError.from_text("\n".join(dict.fromkeys(map(str, problems))))
    return instance


def _read(
    section: type[Sections], tree: Mapping[str, Any], keys: Keys, places: Places, problems: list[SettingError]
) -> Sections | None:
    declared = section.settings()
    unknown = [key for key in tree if key not in declared]
    values: dict[str, Any] = {}
    before = len(problems)
    for name, each in declared.items():
        here = (*keys, name)
        if name in tree:
            inner, value = each.section, tree[name]
            if inner is not None and isinstance(value, Mapping):
                values[name] = _read(inner, value, here, places, problems)
                continue
            try:
                values[name] = each.check(value)
            except ValueError:
                hint = f"{_near(each, value)}{_default(each)}".strip()
                problems.append(SettingError.must_be(places.name(here), each.takes, shown(value), hint))
        elif each.required and not any(_is_meant(name, key, declared) for key in unknown):
            problems.append(places.error(here, "is missing", f"Give it {each.takes} ({each.meaning})."))
    for key in unknown:
        problems.append(
            places.error((*keys, key), "there is no such setting", _suggestion((*keys, key), declared))
        )
    if len(problems) > before:
        return None
    try:
        return section(**values)
    except SettingError as error:
        problems.append(error.about(places.name(tuple(error.setting.split(".")))))
        return None


def _is_meant(name: str, key: str, declared: Mapping[str, Setting]) -> bool:
    """Return whether a setting that is missing is one that is misspelt: it is said once."""
    return nearest(key, declared) == f"Did you mean '{name}'?"


def _near(each: Setting, value: Any) -> str:
    """Return the nearest of several names, where one of them is taken."""
    if not each.names or not isinstance(value, str):
        return ""
    near = nearest(value, each.names)
    return f" {near}" if near.startswith("Did you mean") else ""


def _default(each: Setting) -> str:
    plain = each.required or each.default in ("", None) or isinstance(each.default, Section)
    return "" if plain else f" The default is {shown(each.default)}."


def _suggestion(keys: Keys, declared: Mapping[str, Setting]) -> str:
    """Return where a setting that is not known in its section may belong."""
    name = keys[-1]
    if (ours := our_name(".".join(keys))) is not None and ours.recipe:
        return f"Did you mean {ours.recipe}?"
    near = nearest(name, declared)
    if near.startswith("Did you mean"):
        return near
    whole = m.Recipe.settings()
    homes = [
        f"{key}.{name}"
        for key, each in whole.items()
        if each.section is not None and name in each.section.settings()
    ]
    if name in whole:
        homes.append(f"{name} at the top level")
    homes += technique_settings(name)
    return f"Did you mean {' or '.join(homes[:4])}?" if homes else near
