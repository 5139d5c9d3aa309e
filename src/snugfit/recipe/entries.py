"""Entries of a recipe that name a technique: `ema`, or `ema: {decay: 0.999}`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.source import Keys, Places
from snugfit.recipe.wording import shown, wanted

if TYPE_CHECKING:
    from snugfit.core.technique import Technique

SEAMS_OF_THEIR_OWN = ("optimizer", "schedule")
"""Seams whose techniques have a key of their own in the recipe."""


def parse_slot(entry: Any, seam: str, defaults: Mapping[str, Mapping[str, Any]], places: Places) -> Technique:
    """The technique of a key that holds one, such as `optimizer`.

    Args:
        defaults: settings by the technique's name that stand where the recipe gives none.
    Raises:
        SettingError: an unknown name, one without that seam, or an impossible setting.
    """
    name, settings = _split(entry, (seam,), places, known(seam))
    return _make(name, {**defaults.get(name, {}), **settings}, (seam,), places, known(seam))


def parse_list(entries: Any, places: Places) -> tuple[Technique, ...]:
    """The techniques of the key `techniques`.

    Raises:
        SettingError: not a list, an unknown name, one that has a key of its own, or an impossible setting.
    """
    keys = ("techniques",)
    names = known(None)
    if isinstance(entries, Mapping):
        example = next(iter(entries), "ema")
        raise places.error(keys, f"must be a list. Write each with a dash, like: - {example}: {{…}}")
    if not isinstance(entries, tuple):
        raise places.error(keys, f"must be a list of techniques, found {shown(entries)}. Write [] for none.")
    split = [_split(entry, keys, places, names) for entry in entries]
    return tuple(_make(name, settings, keys, places, names) for name, settings in split)


def known(seam: str | None) -> dict[str, type[Technique]]:
    """The techniques that a key takes: those of one seam, or with None those without a key of their own."""
    from snugfit.techniques import discover

    if seam is not None:
        return {name: found for name, found in discover().items() if seam in found.card.seams}
    return {name: found for name, found in discover().items() if own_key(found) is None}


def own_key(technique: type[Technique]) -> str | None:
    """The recipe's key that names this technique in place of `techniques`."""
    if technique.card.family == "numerics":
        return "plan.numerics"
    return next((seam for seam in SEAMS_OF_THEIR_OWN if seam in technique.card.seams), None)


def settings_of(technique: type[Technique]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each setting; the default is `dataclasses.MISSING` where there is none."""
    hints = typing.get_type_hints(technique, include_extras=True)
    fields = dataclasses.fields(technique)  # type: ignore[arg-type]
    return {field.name: (hints[field.name], field.default) for field in fields if field.init}


def technique_settings(name: str) -> list[str]:
    """The settings of this name that techniques have, written in full."""
    from snugfit.techniques import discover

    found = {key: technique for key, technique in discover().items() if name in settings_of(technique)}
    return [f"{own_key(technique) or 'techniques'}.{key}.{name}" for key, technique in found.items()]


def as_entry(technique: Technique) -> dict[str, dict[str, Any]]:
    """A technique as a recipe writes it, with all its settings."""
    settings = {name: getattr(technique, name) for name in settings_of(type(technique))}
    return {technique.card.name: settings}


def _split(
    entry: Any, keys: Keys, places: Places, names: Mapping[str, type[Technique]]
) -> tuple[str, Mapping[str, Any]]:
    """The name and the settings of an entry."""
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or not entry:
        raise places.error(keys, f"must be one of {', '.join(names)}, found {shown(entry)}.")
    if len(entry) > 1:
        found = list(entry)
        if keys == ("techniques",):
            raise places.error(
                (*keys, found[1]), f"an entry holds one technique. Begin a new one: - {found[1]}: …"
            )
        whole = f"{keys[0]}={{{found[-1]}: {{…}}}}"
        do = f"Write {whole}" if places.of((*keys, found[-1])).startswith("override") else "Remove one"
        raise places.error(keys, f"a run has one, found {' and '.join(found)}. {do}.")
    ((name, settings),) = entry.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise places.error((*keys, name), f"must be settings like {{key: value}}, found {shown(settings)}.")
    return name, settings or {}


def _make(
    name: str, settings: Mapping[str, Any], keys: Keys, places: Places, names: Mapping[str, type[Technique]]
) -> Technique:
    from pydantic import TypeAdapter, ValidationError

    if name not in names:
        raise places.error((*keys, name), _unknown(name, names, keys))
    technique = names[name]
    types = settings_of(technique)
    values: dict[str, Any] = {}
    for setting, value in settings.items():
        if setting not in types:
            hint = nearest(setting, types) if types else "It has no settings."
            raise places.error((*keys, name, setting), f"'{name}' has no such setting. {hint}")
        try:
            values[setting] = TypeAdapter(types[setting][0]).validate_python(value, strict=True)
        except ValidationError as error:
            problem = f"must be {wanted(types[setting][0])}, found {shown(value)}."
            raise places.error((*keys, name, setting), problem) from error
    missing = [setting for setting, (_, default) in types.items() if default is dataclasses.MISSING]
    for setting in missing:
        if setting not in values:
            raise places.error((*keys, name), f"'{setting}' is missing. Give it {wanted(types[setting][0])}.")
    try:
        return technique(**values)
    except SettingError as error:
        text = str(error)
        if not text.startswith(f"{name}."):
            raise places.error((*keys, name), text) from error
        setting, _, problem = text.removeprefix(f"{name}.").partition(": ")
        raise places.error((*keys, name, setting), problem) from error


def _unknown(name: str, names: Mapping[str, type[Technique]], keys: Keys) -> str:
    from snugfit.techniques import discover

    elsewhere = discover().get(name)
    if elsewhere is None:
        kind = "technique" if keys == ("techniques",) else keys[0]
        return f"there is no such {kind}. {nearest(name, names)}"
    key = own_key(elsewhere)
    if key is None:
        return (
            f"'{name}' is no {keys[0]}. Put it under techniques. {keys[0].capitalize()}s: {', '.join(names)}."
        )
    if key in SEAMS_OF_THEIR_OWN:
        return f"'{name}' is a{'n' if key[0] in 'aeiou' else ''} {key}. Write it under its own key: {key}: {{{name}: {{…}}}}."
    return f"'{name}' is a precision. Write {key}: {name}."
