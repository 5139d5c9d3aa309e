"""Settings written back into a recipe's file: the smallest change of its text, which keeps comments and order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from snugfit.errors import SettingError
from snugfit.recipe.load import build
from snugfit.recipe.strict_yaml import Keys, Places, compose, read_yaml
from snugfit.system.disk_files import whole_file

_BOM = "\ufeff"

_Value = float | int | str


class Edit(NamedTuple):
    """A piece of text in place of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def write_back(
    path: str | os.PathLike[str], overrides: Iterable[str], changes: Mapping[Keys, _Value]
) -> tuple[str, ...]:
    """Change settings in a recipe's file, and return the changed lines, each with its place.

    A setting that the file leaves to the preset or to a default is added to it. The file is replaced at once, and only if what
    is read from it afterwards, under the same overrides, differs by these settings alone.

    Raises:
        SettingError: the file is not that of a recipe, it cannot be written, or it says otherwise where the settings do not reach.
    """
    path = Path(path)
    before, after = _changed(path, tuple(overrides), changes)
    _replace(path, after)
    old = set(before.splitlines())
    lines = enumerate(after.removeprefix(_BOM).splitlines(), 1)
    return tuple(f"{path}:{number}: {line.strip()}" for number, line in lines if line not in old)


def check_write_back(
    path: str | os.PathLike[str],
    overrides: Iterable[str],
    examples: Mapping[Keys, tuple[_Value, _Value]],
) -> None:
    """Refuse, before values are looked for, what `write_back` would refuse once they are there; nothing is written.

    Args:
        examples: two values that each setting might get, of which an override can have decided one at most.
    Raises:
        SettingError: they cannot be written to the file.
    """
    path, overrides = Path(path), tuple(overrides)
    if not path.is_file():
        raise SettingError(
            path, "is read once, so that nothing can be written back to it", "Name the recipe's file."
        )
    if not os.access(path.resolve().parent, os.W_OK):
        raise SettingError(
            path, "cannot be written: its folder is read-only", "Name a file that can be written."
        )
    for place in (0, 1):
        _changed(path, overrides, {keys: values[place] for keys, values in examples.items()})


def _changed(path: Path, overrides: tuple[str, ...], changes: Mapping[Keys, _Value]) -> tuple[str, str]:
    """Return the text of a recipe's file, without a mark of its bytes, and with it the changed one.

    Raises:
        SettingError: the file is not that of a recipe, or says otherwise where the settings do not reach.
    """
    whole = path.read_bytes().decode("utf-8")
    text = before = whole.removeprefix(_BOM)
    for keys, value in changes.items():
        edit = _edit(text, keys, value, path)
        text = text[: edit.start] + edit.text + text[edit.end :]
    _check(_values(before, path, overrides), _values(text, path, overrides), changes, path)
    return before, whole[: len(whole) - len(before)] + text


def _edit(text: str, keys: Keys, value: _Value, path: Path) -> Edit:
    node, rest = compose(text, str(path)), keys
    while isinstance(node, yaml.MappingNode):
        entries = {key.value: below for key, below in node.value}
        if rest[0] not in entries:
            return _added(text, node, rest, value)
        node, rest = entries[rest[0]], rest[1:]
        if not rest:
            break
    if not isinstance(node, yaml.ScalarNode):
        raise SettingError(
            path, f"has no place for {'.'.join(keys)}", f"Write it yourself: {_flow(keys, value)}"
        )
    start, end = node.start_mark.index, node.end_mark.index
    if rest and node.value == rest[0]:  # a technique without settings, as in `optimizer: sgd`
        return Edit(start, end, f"{{{_flow(rest, value)}}}")
    written = f"{{{_flow(rest, value)}}}" if rest else _written(value)
    return Edit(start, end, f" {written}" if start == end else written)


def _added(text: str, node: yaml.MappingNode, keys: Keys, value: _Value) -> Edit:
    """Return the setting as a new entry: the first of a section, the last of the file."""
    line = "\r\n" if "\r\n" in text else "\n"
    entry, start = _flow(keys, value), node.start_mark.index
    if node.flow_style:
        return Edit(start + 1, start + 1, f"{entry}, " if node.value else entry)
    if node.start_mark.column:
        return Edit(start, start, f"{entry}{line}{' ' * node.start_mark.column}")
    return Edit(len(text), len(text), f"{'' if text.endswith(line) else line}{entry}{line}")


def _flow(keys: Keys, value: _Value) -> str:
    """Return a setting as YAML on one line.

    >>> _flow(("optimizer", "sgd", "learning_rate"), 0.1)
    'optimizer: {sgd: {learning_rate: 0.1}}'
    """
    first, *rest = keys
    return f"{first}: {{{_flow(tuple(rest), value)}}}" if rest else f"{first}: {_written(value)}"


def _written(value: _Value) -> str:
    """Return a number as a person writes it.

    >>> _written(3e-05), _written(0.0031), _written(16)
    ('3e-5', '0.0031', '16')
    """
    return repr(value).replace("e-0", "e-")


def _values(text: str, path: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    places = Places(str(path))
    tree = read_yaml(text, str(path), places)
    if not isinstance(tree, Mapping):
        raise SettingError(path, "is no recipe", "Name a recipe.")
    return build(tree, overrides, places, folder=path.absolute().parent, name=path.stem).as_dict()


def _check(before: Any, after: Any, changes: Mapping[Keys, _Value], path: Path) -> None:
    """Refuse a change that has not reached its setting, or has reached another."""
    target = before
    for keys, value in changes.items():
        target = _with(target, keys, value)
    if after == target:
        return
    wanted = ", ".join(f"{'.'.join(keys)}={_written(value)}" for keys, value in changes.items())
    raise SettingError(
        path,
        f"{wanted} cannot be written there: an override sets it too, or its optimizer is another one",
        "Write what you override into the file, or write the value yourself.",
    )


def _with(node: Any, keys: Keys, value: Any) -> Any:
    return {**node, keys[0]: _with(node.get(keys[0], {}), keys[1:], value)} if keys else value


def _replace(path: Path, text: str) -> None:
    real = path.resolve()  # a link stays one
    try:
        with whole_file(real) as draft:
            draft.write_bytes(text.encode("utf-8"))
            shutil.copymode(real, draft)
    except OSError as error:
        raise SettingError(
            path, f"cannot be written: {error.strerror}", "Name a file that can be written."
        ) from error
