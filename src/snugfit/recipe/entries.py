"""Entries of a recipe that name a technique: `ema`, or `ema: {decay: 0.999}`; a setting may hold such entries too.

A name is that of one of Snugfit's, the `package.module:Class` of one of the user's own, or what an installed package lists.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snugfit.core.settings import check_type, shown, wanted
from snugfit.errors import SettingError, nearest
from snugfit.recipe.strict_yaml import Keys, Places

if TYPE_CHECKING:
    from snugfit.core.technique import Technique
    from snugfit.system.plugins import Importer

SEAMS_OF_THEIR_OWN = ("optimizer", "schedule")
"""Seams whose techniques have a key of their own in the recipe."""

FULL = "fp32"
"""The precision that is no technique."""


@dataclass(frozen=True)
class _Slot:
    """The techniques that a key takes, and who imports those of the user's own."""

    takes: Callable[[type[Technique]], bool]
    importer: Importer | None

    def names(self) -> list[str]:
        """Return the names of Snugfit's that it takes, for an error: all techniques are imported."""
        return list(_taken(self.takes))


def parse_slot(
    entry: Any,
    seam: str,
    defaults: Mapping[str, Mapping[str, Any]],
    places: Places,
    importer: Importer | None = None,
) -> Technique:
    """Return the technique of a key that holds one, such as `optimizer`.

    Args:
        defaults: settings by the technique's name that stand where the recipe gives none.
        importer: of techniques that are not Snugfit's; None: there are none.
    Raises:
        CodeRefused: it names code, without consent.
        SettingError: an unknown name, one without that seam, or an impossible setting.
    """
    slot = _Slot(lambda technique: own_key(technique) == seam, importer)
    name, settings = _split(entry, (seam,), places, slot.names)
    return _make(name, {**defaults.get(name, {}), **settings}, (seam,), places, slot)


def parse_list(entries: Any, places: Places, importer: Importer | None = None) -> tuple[Technique, ...]:
    """Return the techniques of the key `techniques`.

    Args:
        importer: as of `parse_slot`.
    Raises:
        CodeRefused: an entry names code, without consent.
        SettingError: not a list, an unknown name, one that has a key of its own, or an impossible setting.
    """
    keys = ("techniques",)
    slot = _Slot(lambda technique: own_key(technique) is None, importer)
    if isinstance(entries, Mapping):
        example = next(iter(entries), "ema")
        raise places.error(keys, "must be a list", f"Write each with a dash, like: - {example}: {{…}}")
    if not isinstance(entries, tuple):
        raise places.error(
            keys, f"must be a list of techniques, found {shown(entries)}", "Write [] for none."
        )
    split = [_split(entry, keys, places, slot.names) for entry in entries]
    return tuple(_make(name, settings, keys, places, slot) for name, settings in split)


def parse_numerics(entry: Any, places: Places, importer: Importer | None = None) -> Technique | str | None:
    """Return the technique of the key `plan.numerics`, or fp32, which is none; None where it is left to the plan.

    Args:
        importer: as of `parse_slot`.
    Raises:
        CodeRefused: it names code, without consent.
        SettingError: no precision: gives the nearest one, or the key that takes the technique; or an impossible setting.
    """
    from snugfit.techniques import discover, suggestion

    if entry is None:
        return None
    keys = ("plan", "numerics")
    name, settings = _split(entry, keys, places, precisions)
    if name == FULL:
        if settings:
            raise places.error((*keys, name), "it has no settings", "Remove them.")
        return FULL
    technique = discover().get(name) or _imported(name, (*keys, name), places, importer)
    if technique is None:
        raise places.error(keys, f"there is no such precision: '{name}'", suggestion(name, precisions()))
    if not technique.card.precision:
        raise places.error(
            keys, f"'{name}' is no precision", f"Put it under {own_key(technique) or 'techniques'}."
        )
    return _make(name, settings, keys, places, _Slot(lambda each: each.card.precision, importer))


def precisions() -> tuple[str, ...]:
    """Return the choices of `plan.numerics`; other techniques of that family refine one of them, and are listed."""
    return (FULL, *_taken(lambda technique: technique.card.precision))


def known(seam: str | None) -> dict[str, type[Technique]]:
    """Return the techniques that a key takes: `optimizer` or `schedule`, or with None those without a key of their own."""
    return _taken(lambda technique: own_key(technique) == seam)


def own_key(technique: type[Technique]) -> str | None:
    """Return the recipe's key that names this technique in place of `techniques`."""
    if technique.card.precision:
        return "plan.numerics"
    return next((seam for seam in SEAMS_OF_THEIR_OWN if seam in technique.card.seams), None)


def settings_of(technique: type[Technique]) -> dict[str, tuple[Any, Any]]:
    """Type and default of each setting; the default is `dataclasses.MISSING` where there is none."""
    types = technique.setting_types()
    fields = dataclasses.fields(technique)  # type: ignore[arg-type]
    return {field.name: (types[field.name], field.default) for field in fields if field.init}


def technique_settings(name: str) -> list[str]:
    """Return the settings of this name that techniques have, written in full."""
    from snugfit.techniques import discover

    techniques = {key: technique for key, technique in discover().items() if name in settings_of(technique)}
    return [f"{own_key(technique) or 'techniques'}.{key}.{name}" for key, technique in techniques.items()]


def inner(annotation: Any) -> tuple[type[Technique], Any] | None:
    """Return the kind of technique that a setting of this type holds, and in what: None for one, `tuple` or `Mapping` for many.

    None if it holds plain values.
    """
    from snugfit.core.technique import Technique

    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    content = arguments[0] if origin is tuple else arguments[-1] if origin is Mapping else annotation
    if isinstance(content, type) and issubclass(content, Technique):
        return content, origin
    return None


def of_kind(kind: type[Technique]) -> dict[str, type[Technique]]:
    """Return the techniques that a setting which holds techniques of this kind takes."""
    return _taken(lambda technique: issubclass(technique, kind))


def _taken(takes: Callable[[type[Technique]], bool]) -> dict[str, type[Technique]]:
    from snugfit.techniques import discover

    return {name: technique for name, technique in discover().items() if takes(technique)}


def _split(
    entry: Any, keys: Keys, places: Places, names: Callable[[], Iterable[str]]
) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the settings of an entry; `names` gives those that it may have, for an error."""
    if isinstance(entry, str):
        return entry, {}
    if not isinstance(entry, Mapping) or not entry:
        raise places.error(
            keys, f"must be one of {', '.join(names())}, found {shown(entry)}", "Choose one of them."
        )
    if len(entry) > 1:
        entry_names = list(entry)
        if len(keys) > 1:
            raise places.error(
                keys,
                f"an entry holds one, found {' and '.join(entry_names)}",
                "Give each an entry of its own, or remove one.",
            )
        if keys == ("techniques",):
            raise places.error(
                (*keys, entry_names[1]),
                "an entry holds one technique",
                f"Begin a new one: - {entry_names[1]}: …",
            )
        whole = f"{keys[0]}={{{entry_names[-1]}: {{…}}}}"
        do = f"Write {whole}" if places.of((*keys, entry_names[-1])).startswith("override") else "Remove one"
        raise places.error(keys, f"a run has one, found {' and '.join(entry_names)}", f"{do}.")
    ((name, settings),) = entry.items()
    if settings is not None and not isinstance(settings, Mapping):
        raise places.error(
            (*keys, name), f"must be settings like {{key: value}}, found {shown(settings)}", "Write them so."
        )
    return name, settings or {}


def _make(name: str, settings: Mapping[str, Any], keys: Keys, places: Places, slot: _Slot) -> Technique:
    technique = _technique_of(name, keys, places, slot)
    try:
        types = settings_of(technique)
    except Exception as error:  # the annotations of the user's own class
        raise places.error(
            (*keys, name),
            f"the types of its settings cannot be read ({type(error).__name__}: {error})",
            "Import what their annotations name.",
        ) from error
    values: dict[str, Any] = {}
    for setting, value in settings.items():
        if setting not in types:
            hint = nearest(setting, types) if types else "It has no settings."
            raise places.error((*keys, name, setting), f"'{name}' has no such setting", hint)
        values[setting] = _value(types[setting][0], value, (*keys, name, setting), places, slot.importer)
    missing = [setting for setting, (_, default) in types.items() if default is dataclasses.MISSING]
    for setting in missing:
        if setting not in values:
            raise places.error(
                (*keys, name), f"'{setting}' is missing", f"Give it {wanted(types[setting][0])}."
            )
    try:
        return technique(**values)
    except SettingError as error:
        prefix = f"{technique.card.name}."
        if not error.setting.startswith(prefix):
            raise error.about(f"{places.name((*keys, name))}: {error.setting}") from error
        raise error.about(places.name((*keys, name, error.setting.removeprefix(prefix)))) from error


def _technique_of(name: str, keys: Keys, places: Places, slot: _Slot) -> type[Technique]:
    """Return the technique of a name that may stand under this key."""
    from snugfit.techniques import discover

    technique = discover().get(name) or _imported(name, (*keys, name), places, slot.importer)
    if technique is not None and slot.takes(technique):
        return technique
    raise places.error((*keys, name), *_unknown(name, technique, slot.names(), keys))


def _imported(name: str, keys: Keys, places: Places, importer: Importer | None) -> type[Technique] | None:
    """Return the technique of the user's own that `name` stands for; None where it is none."""
    from snugfit.techniques import discover
    from snugfit.techniques.plugins import TECHNIQUES

    if importer is None:
        return None
    try:
        own = importer.load(TECHNIQUES, name, ".".join(keys), discover())
        return None if own is None else own[1]
    except SettingError as error:
        raise error.about(places.name(keys)) from error


def _value(annotation: Any, value: Any, keys: Keys, places: Places, importer: Importer | None) -> Any:
    """Return a setting's value, checked; an entry that it holds becomes its technique."""

    def impossible() -> SettingError:
        return SettingError.must_be(places.name(keys), wanted(annotation), shown(value))

    holds = inner(annotation)
    if holds is None:
        try:
            return check_type(annotation, value)
        except ValueError as error:
            raise impossible() from error
    kind, container = holds
    if container is not None and not isinstance(value, container):
        raise impossible()
    slot = _Slot(lambda technique: issubclass(technique, kind), importer)

    def technique(entry: Any, keys: Keys) -> Technique:
        return _make(*_split(entry, keys, places, slot.names), keys, places, slot)

    if container is tuple:
        return tuple(technique(entry, keys) for entry in value)
    if container is Mapping:
        return {key: technique(entry, (*keys, key)) for key, entry in value.items()}
    return technique(value, keys)


def _unknown(
    name: str, technique: type[Technique] | None, names: Iterable[str], keys: Keys
) -> tuple[str, str]:
    """Return why a name cannot stand under this key, and what to do.

    Args:
        technique: of that name, where there is one.
        names: those that can.
    """
    if technique is None:
        kind = "technique" if keys == ("techniques",) else keys[0]
        from snugfit.techniques import suggestion

        return f"there is no such {kind}", suggestion(name, names)
    if len(keys) > 1:
        return f"'{name}' cannot stand within another", f"These can: {', '.join(names)}."
    key = own_key(technique)
    if key is None:
        return (
            f"'{name}' is no {keys[0]}",
            f"Put it under techniques. {keys[0].capitalize()}s: {', '.join(names)}.",
        )
    if key in SEAMS_OF_THEIR_OWN:
        kind = f"a{'n' if key[0] in 'aeiou' else ''} {key}"
        return f"'{name}' is {kind}", f"Write it under its own key: {key}: {{{name}: {{…}}}}."
    return f"'{name}' is a precision", f"Write {key}: {name}."
