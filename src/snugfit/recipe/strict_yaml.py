"""Strict YAML in which every setting knows its place."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import yaml

from snugfit.errors import SettingError
from snugfit.system.json_text import MAX_DEPTH

Keys = tuple[str, ...]
"""A setting's path: `("data", "max_length")` is written `data.max_length`."""

_TAG = "tag:yaml.org,2002:"
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: `5e-5` is a number; `no`, `on`, `1:30` and `2026-11-20` are text."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}  # type: ignore[misc]

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="a recipe has no aliases (*name)", problem_mark=mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


class Dumper(yaml.SafeDumper):
    """Writes what both YAML 1.1 and `read_yaml` read back as the same."""


for _kind, _pattern, _first in (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", [*"tTfF"]),
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+$", [*"-+0123456789"]),
    ("float", _NUMBER, [*"-+0123456789."]),
):
    _Loader.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(_pattern), _first)
Dumper.add_implicit_resolver(f"{_TAG}float", re.compile(_NUMBER), [*"-+0123456789."])


class Places:
    """The places of settings: a line of a file, an override or an option."""

    def __init__(self, whole: str = "") -> None:
        self._places: dict[Keys, str] = {(): whole}

    def put(self, keys: Keys, place: str) -> None:
        self._places[keys] = place

    def put_new(self, keys: Keys, place: str) -> None:
        """Note the place of a setting that was not written before."""
        self._places.setdefault(keys, place)

    def replace(self, keys: Keys, place: str) -> None:
        """Note a setting's place, and forget where its parts were written before."""
        self._places = {old: where for old, where in self._places.items() if old[: len(keys)] != keys}
        self._places[keys] = place

    def of(self, keys: Keys) -> str:
        """Return the place of a setting, or of the nearest part around it that was written."""
        return next(self._places[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in self._places)

    def name(self, keys: Keys) -> str:
        """Return a setting's place and full name."""
        return ": ".join(part for part in (self.of(keys), ".".join(keys)) if part)

    def error(self, keys: Keys, problem: str, remedy: str) -> SettingError:
        """Return an error about a setting, with its full name and its place."""
        return SettingError(self.name(keys), problem, remedy)


def read_yaml(text: str, name: str, places: Places) -> Any:
    r"""Return the value of a YAML document; sequences become tuples. Notes `name:line` of every setting in `places`.

    >>> read_yaml("rate: 5e-5\nlabel: no\n", "my.yaml", Places())
    {'rate': 5e-05, 'label': 'no'}

    Raises:
        SettingError: a syntax error, a key given twice, an alias, or a tag that is not plain YAML.
    """
    node = compose(text, name)
    return None if node is None else _value(node, (), lambda line: f"{name}:{line}", places)


def compose(text: str, name: str) -> yaml.Node | None:
    """Return the nodes of a YAML document, which know where in `text` they stand; None where it is empty.

    Raises:
        SettingError: it is not YAML, or has an alias.
    """
    try:
        return yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise SettingError(
            f"{name}:{line}", f"cannot be read: {_problem(error, line)}", "Correct the line."
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SettingError(
            f"{name}:{line}", "holds a character that YAML does not allow", "Remove it."
        ) from error
    except RecursionError as error:
        raise SettingError(
            name, "is nested too deeply for a recipe", "Write it with fewer levels."
        ) from error


def read_value(text: str, place: str) -> Any:
    """Return the value of a piece of YAML that is written on a command line.

    >>> read_value("[title, text]", "override 'data.text=[title, text]'")
    ('title', 'text')

    Raises:
        SettingError: it is not YAML.
    """
    try:
        node = yaml.compose(text, _Loader)
    except yaml.MarkedYAMLError as error:
        raise SettingError(place, f"the value cannot be read: {_problem(error, 1)}", "Correct it.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SettingError(place, "the value cannot be read as YAML", "Correct it.") from error
    return None if node is None else _value(node, (), lambda _: place, Places())


def _problem(error: yaml.MarkedYAMLError, line: int) -> str:
    """Return what the YAML parser found, where it began, and what to do."""
    problem = error.problem or str(error.context)
    begun = error.context_mark.line + 1 if error.context_mark else line
    where = f", {error.context} that begins on line {begun}" if error.context and begun != line else ""
    return f"{problem}{where}.{_hint(problem)}"


def _hint(problem: str) -> str:
    if "'\\t'" in problem:
        return " Indent with spaces, not tabs."
    if "mapping values are not allowed" in problem:
        return (
            " Put quotes around text that holds ': ', and see that keys of one section stand in one column."
        )
    if "aliases" in problem or "scanning an alias" in problem:
        return " Write the value out, or put quotes around text that begins with *."
    return ""


def _value(node: yaml.Node, keys: Keys, place: Callable[[int], str], places: Places) -> Any:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
        return _mapping(node, keys, place, places)
    if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
        for entry in node.value:
            if isinstance(entry, yaml.ScalarNode):
                places.put((*keys, entry.value), place(entry.start_mark.line + 1))
        # entries of a list go by their names, not by numbers: `techniques.ema.decay`
        return tuple(_value(entry, keys, place, places) for entry in node.value)
    kind = node.tag.removeprefix(_TAG)
    if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
        raise SettingError(place(line), f"the tag {node.tag} is not for recipes", "Write the plain value.")
    try:
        return _SCALARS[kind](node.value)
    except (ValueError, KeyError, OverflowError) as error:
        raise SettingError(
            place(line), f"'{node.value[:40]}' is no {kind} that can be used", "Write another value."
        ) from error


def _mapping(
    node: yaml.MappingNode, keys: Keys, place: Callable[[int], str], places: Places
) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise SettingError(
                place(line), "the name of a setting must be text, found a list or a mapping", "Write a name."
            )
        key = key_node.value
        if key in mapping:
            raise SettingError(
                place(line),
                f"'{'.'.join((*keys, key))}' is given twice, first on line {lines[key]}",
                "Remove one.",
            )
        lines[key] = line
        places.put((*keys, key), place(line))
        mapping[key] = _value(value_node, (*keys, key), place, places)
    return mapping


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise OverflowError(text)
    return value


_SCALARS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": _finite,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "null": lambda _: None,
}
