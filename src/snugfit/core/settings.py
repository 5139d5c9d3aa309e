"""Settings, each declared once: a field of a frozen dataclass has its type, default and meaning.

A recipe's section and what a run takes are the same dataclass (`core.job.Train`), so the reader of recipes, the functions for Python, the
schema for editors and the reference page all read one declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from snugfit.errors import SettingError

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}


@dataclass(frozen=True)
class Bound:
    """A condition on the values of a type, as in `Annotated[float, Bound(above=0)]`.

    Args:
        above, least, below: of a number.
        entries: of a list, at least.
        pattern: that a text has to match as a whole.
    """

    above: float | None = None
    least: float | None = None
    below: float | None = None
    entries: int = 0
    pattern: str | None = None

    def admits(self, value: Any) -> bool:
        if isinstance(value, str):
            return self.pattern is None or re.fullmatch(self.pattern, value) is not None
        if isinstance(value, tuple):
            return len(value) >= self.entries
        return (
            (self.above is None or value > self.above)
            and (self.least is None or value >= self.least)
            and (self.below is None or value < self.below)
        )


Count = Annotated[int, Bound(above=0)]
"""A positive whole number."""


@dataclass(frozen=True)
class Declaration:
    """The words of a setting's field besides its type and its default.

    Args:
        meaning: one line for a reader who does not know the setting.
        takes: the values in words, where the type does not say them well enough.
        example: a value, where neither the default nor the type gives one.
        keyword: its name among the arguments of `sf.train`, where that is another one.
        pattern: what a text has to match as a whole.
        commands: that read it; empty where they are those of its section, or all that take a recipe.
    """

    meaning: str
    takes: str = ""
    example: Any = None
    keyword: str = ""
    pattern: str = ""
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """A declared setting: its name, its type, its default (`MISSING` where it has to be given) and its declaration."""

    name: str
    annotation: Any
    default: Any
    declaration: Declaration

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def meaning(self) -> str:
        """Return its meaning in one line; that of a section is the section's docstring."""
        return self.declaration.meaning or inspect.getdoc(self.section).partition("\n")[0]  # type: ignore[union-attr]

    @property
    def takes(self) -> str:
        """The values that it takes, in words."""
        return self.declaration.takes or wanted(self.annotation)

    @property
    def names(self) -> list[str]:
        """The names of which it takes one, where it takes names."""
        return list(_names(self.annotation))

    @property
    def section(self) -> type[Section] | None:
        """The section that it holds, if it holds one."""
        options = get_args(self.annotation) or (self.annotation,)
        return next((each for each in options if isinstance(each, type) and issubclass(each, Section)), None)

    def check(self, value: Any) -> Any:
        """Return a value as the setting has it: a whole number becomes a float where one is taken.

        Raises:
            ValueError: the setting does not take it.
        """
        checked = check_type(self.annotation, value)
        pattern = self.declaration.pattern
        if pattern and isinstance(value, str) and not re.fullmatch(pattern, value):
            raise ValueError(value)
        return checked


def setting(meaning: str, default: Any = MISSING, **more: Any) -> Any:
    """Declare a field of a section: what it means, its default, and what else a `Declaration` has.

    >>> @dataclass(frozen=True)
    ... class Example(Section):
    ...     key: ClassVar[str] = "example"
    ...     rows: Count = setting("rows of the example", 3)
    >>> Example(rows=0)
    Traceback (most recent call last):
    snugfit.errors.SettingError: example.rows: must be a positive whole number, found 0.
    """
    return dataclasses.field(default=default, metadata={"setting": Declaration(meaning, **more)})


class Section:
    """Settings that belong together, as a frozen dataclass; whoever makes one gets the same checks."""

    key: ClassVar[str] = ""
    """The name in a recipe; empty for the whole of one."""

    @classmethod
    @functools.cache
    def settings(cls) -> Mapping[str, Setting]:
        """Return the settings by name, in the order in which they are declared."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return {
            field.name: Setting(field.name, hints[field.name], field.default, field.metadata["setting"])
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        }

    def __post_init__(self) -> None:
        for name, each in self.settings().items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, each.check(value))
            except ValueError as error:
                path = f"{self.key}.{name}".removeprefix(".")
                raise SettingError.must_be(path, each.takes, shown(value)) from error


def _names(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from _names(part)


def check_type(annotation: Any, value: Any) -> Any:
    """Return a value as a type has it: a whole number becomes a float where one is taken, and a list a tuple.

    >>> check_type(float | None, 3), check_type(tuple[float, ...], [1, 2])
    (3.0, (1.0, 2.0))

    Raises:
        ValueError: the value is not of that type, or outside its bounds.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        for each in arguments:
            try:
                return check_type(each, value)
            except ValueError:
                continue
    elif origin is Annotated:
        value = check_type(arguments[0], value)
        if all(bound.admits(value) for bound in arguments[1:]):
            return value
    elif origin is tuple and isinstance(value, (tuple, list)):
        if arguments[-1] is Ellipsis:
            return tuple(check_type(arguments[0], entry) for entry in value)
        if len(value) == len(arguments):
            return tuple(check_type(each, entry) for each, entry in zip(arguments, value, strict=True))
    elif origin in (Mapping, dict) and isinstance(value, Mapping):
        key, entry = arguments
        return {check_type(key, name): check_type(entry, each) for name, each in value.items()}
    elif annotation in (int, float):
        # numbers of NumPy are of these kinds and not of Python's types; they cannot be written into a recipe
        kind = numbers.Integral if annotation is int else numbers.Real
        if isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value):
            return annotation(value)
    elif _is_of(annotation, value):
        return value
    raise ValueError(value)


def _is_of(annotation: Any, value: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(annotation)
    if origin is Callable:
        return callable(value)
    kind = origin or annotation
    # what is no class cannot be checked here: whoever declares it does
    return kind is Any or not isinstance(kind, type) or isinstance(value, kind)


def wanted(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """Return what a type takes, in words.

    >>> wanted(int | None), wanted(Literal["fail", "skip"]), wanted(tuple[float, float])
    ('a whole number or null', 'fail or skip', 'a list of 2 numbers')
    >>> wanted(Mapping[str, float])
    'names, each with a number'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return wanted(arguments[0], (*metadata, *arguments[1:]))
    if origin in (Union, types.UnionType):
        return " or ".join(wanted(argument, metadata) for argument in arguments)
    if origin is Literal:
        return _or([str(argument) for argument in arguments])
    if origin is tuple:
        return _list_of(arguments)
    if origin is Mapping:
        return f"names, each with {wanted(arguments[1])}"
    if isinstance(annotation, type) and hasattr(annotation, "seams"):  # a technique
        return f"a {annotation.__name__.lower()}"
    if dataclasses.is_dataclass(annotation):  # a section
        return f"settings ({', '.join(field.name for field in dataclasses.fields(annotation))})"
    return _bounded(_NAMES.get(annotation, getattr(annotation, "__name__", str(annotation))), metadata)


def shown(value: Any) -> str:
    """Return a value as it may stand in a recipe, cut to one line.

    >>> shown("abc"), shown(None), shown((1, 2))
    ("'abc'", 'null', '[1, 2]')
    """
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…{text[-1]}"


def _bounded(name: str, metadata: tuple[Any, ...]) -> str:
    words = {"above": "above", "least": "of at least", "below": "below"}
    bounds = {
        kind: value for bound in metadata for kind in words if (value := getattr(bound, kind)) is not None
    }
    if bounds == {"above": 0}:
        return name.replace("a ", "a positive ", 1)
    limits = " and ".join(f"{words[kind]} {value}" for kind, value in bounds.items())
    return f"{name} {limits}" if limits else name


def _list_of(arguments: tuple[Any, ...]) -> str:
    element = wanted(arguments[0])
    many = (
        "names"
        if element == "text"
        else f"{element.removeprefix('a ')}s"
        if element.startswith("a ")
        else element
    )
    count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
    return f"a list of {count}{many}"


def _or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
