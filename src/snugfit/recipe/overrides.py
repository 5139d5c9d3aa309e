"""Overrides of a recipe, written on a command line as `train.epochs=3`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from snugfit.errors import SettingError, nearest
from snugfit.recipe.strict_yaml import Keys, Places, read_value

_FORM = re.compile(r"[A-Za-z_]\w*(?:[.:][A-Za-z_]\w*)*(?==)")
_MARKS = ("---", "#")
"""What begins a document or a comment to YAML, and is the text of a value here."""
_ALTERNATIVES: Mapping[Keys, Keys] = {
    ("train", "epochs"): ("train", "updates"),
    ("train", "updates"): ("train", "epochs"),
}


def is_override(text: str) -> bool:
    """Return whether a command line's argument is an override, not a file.

    >>> is_override("train.epochs=3"), is_override("runs/a=b/recipe.yaml")
    (True, False)
    """
    return _FORM.match(text) is not None


def apply_overrides(tree: Mapping[str, Any], overrides: Iterable[str], places: Places) -> dict[str, Any]:
    """Return the settings with each override in its place; a later one wins.

    A whole section may be replaced (`techniques=[ema]`), and a technique in a list is found by its name
    (`techniques.ema.decay=0.99`), one of the user's own by its path (`techniques.my_pkg.module:Scaled.factor=3`).

    Raises:
        SettingError: not of the form key=value, or the key goes through something that has no settings.
    """
    result = dict(tree)
    for text in overrides:
        match = _FORM.match(text)
        if match is None:
            raise SettingError(
                f"{text!r}", "is not an override", "Write it as key=value, for example train.epochs=3."
            )
        place = f"override '{text}'"
        keys = _keys(match[0], result)
        written = text[match.end() + 1 :]
        value = read_value(written, place)
        if value is None and written.lstrip().startswith(_MARKS):
            value = written
        result = _with(result, keys, value, place, done=())
        for count in range(1, len(keys)):
            places.put_new(keys[:count], place)
        places.replace(keys, place)
        if keys in _ALTERNATIVES and value is not None:
            # one of the two says how long a run is; the later word counts
            result = _with(result, _ALTERNATIVES[keys], None, place, done=())
    return result


def _keys(name: str, tree: Mapping[str, Any]) -> Keys:
    """Return the keys of a dotted name; the path of a technique of the user's own is one key, where the settings have it.

    >>> _keys("techniques.nets.wide:Scaled.factor", {"techniques": ({"nets.wide:Scaled": {"factor": 2}},)})
    ('techniques', 'nets.wide:Scaled', 'factor')
    """
    keys: Keys = ()
    parts = name.split(".")
    node: list[Any] = [tree]
    while parts:
        names = [key for each in node for key in (each if isinstance(each, Mapping) else [each])]
        paths = (key for key in names if isinstance(key, str) and ":" in key)
        key = next((path for path in paths if parts[: path.count(".") + 1] == path.split(".")), parts[0])
        parts = parts[key.count(".") + 1 :]
        keys = (*keys, key)
        entry = next((each[key] for each in node if isinstance(each, Mapping) and key in each), None)
        node = list(entry) if isinstance(entry, tuple) else [entry]
    return keys


def _with(node: Any, keys: Keys, value: Any, place: str, done: Keys) -> Any:
    """`node` with `value` at `keys`; `done` are the keys that led to `node`."""
    if not keys:
        return value
    first, rest = keys[0], keys[1:]
    if isinstance(node, tuple):
        return _in_list(node, keys, value, place, done)
    if isinstance(node, str) and node == first:
        node = {node: {}}  # a technique without settings, as in `optimizer: sgd`
    if node is not None and not isinstance(node, Mapping):
        raise SettingError(
            place,
            f"'{'.'.join(done)}' is {node!r} in this recipe, so it has no '{first}'",
            "Leave the override out, or write the whole value.",
        )
    node = node or {}
    return {**node, first: _with(node.get(first), rest, value, place, (*done, first))}


def _in_list(entries: tuple[Any, ...], keys: Keys, value: Any, place: str, done: Keys) -> tuple[Any, ...]:
    names = [next(iter(entry), "") if isinstance(entry, Mapping) else str(entry) for entry in entries]
    setting = ".".join(done)
    if keys[0] not in names:
        hint = f"{nearest(keys[0], names)} " if names else ""
        raise SettingError(
            place,
            f"'{setting}' of this recipe has no '{keys[0]}'",
            f"{hint}To add it, write the whole list: {setting}=[{', '.join([*names, keys[0]])}].",
        )
    position = names.index(keys[0])
    changed = _with(entries[position], keys, value, place, done)
    return (*entries[:position], changed, *entries[position + 1 :])
