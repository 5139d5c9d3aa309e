"""Errors that show only on the data or the model: said with the place of the setting too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snugfit.errors import DataError, SettingError
from snugfit.recipe.entries import own_key, settings_of
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.strict_yaml import Keys, Places, read_yaml
from snugfit.system.user_objects import is_python_path

_SECTIONS = ("data", "train", "evaluate", "plan", "budget")
"""Whose settings are checked again on the data and the model."""


_PLAIN = ("model",)
"""Settings without a section, likewise."""

_SETTING = re.compile(r"\w+(\.[\w-]+)*")
"""A setting of a section, or one of a source that a setting names."""


@contextmanager
def located(path: str | os.PathLike[str], overrides: Iterable[str]) -> Iterator[None]:
    """Temporarily have errors that begin with a setting name the recipe's line as well.

    The setting is a technique's (`freeze.patterns: …`), or one of a section (`data.text: …`).

    Raises:
        SettingError, DataError: in place of one that has no line yet.
    """
    try:
        yield
    except (SettingError, DataError) as error:
        located_error = _with_place(error, Path(path), overrides)
        if located_error is None:
            raise
        raise located_error from error


def _with_place(
    error: SettingError | DataError, path: Path, overrides: Iterable[str]
) -> SettingError | DataError | None:
    name, _, setting = error.setting.partition(".")
    if not name.isidentifier() or not (_SETTING.fullmatch(setting) or error.setting in _PLAIN):
        return None  # it is not about a setting, or has its place
    places = Places(str(path))
    try:
        tree = read_yaml(path.read_text(encoding="utf-8-sig"), str(path), places)
        apply_overrides(tree if isinstance(tree, Mapping) else {}, overrides, places)
    except (OSError, ValueError, SettingError):
        return None  # the file has changed under us: the error itself is the one to see
    keys = _keys(name, setting, _named_paths(tree))
    return None if keys is None else error.about(places.name(keys))


def _keys(name: str, setting: str, paths: Iterable[str]) -> Keys | None:
    """Return where a recipe has the setting of a section or of a technique.

    Args:
        paths: of techniques of the user's own that the recipe names, whose errors begin with the name on their card.
    """
    if name in _PLAIN:
        return (name,)
    if name in _SECTIONS:
        return (name, *setting.split("."))

    from snugfit.system.plugins import import_path
    from snugfit.techniques import discover
    from snugfit.techniques.plugins import TECHNIQUES, loaded

    own = {
        path: plugin for path in paths if (plugin := loaded(path)) is not None and plugin.card.name == name
    }
    if name in discover():
        own[name] = discover()[name]
    elif not own:
        listed = [
            plugin
            for each in TECHNIQUES.entry_points().get(name, [])
            if (plugin := loaded(import_path(each)))
        ]
        own = {name: listed[0]} if listed else {}
    for written, technique in own.items():
        if setting in settings_of(technique):
            return (*(own_key(technique) or "techniques").split("."), written, setting)
    return None


def _named_paths(tree: Any) -> Iterator[str]:
    """Yield the keys that are of the form `package.module:Class`, at any depth."""
    if isinstance(tree, Mapping):
        yield from (key for key in tree if isinstance(key, str) and is_python_path(key))
    for inside in tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple) else ():
        yield from _named_paths(inside)
