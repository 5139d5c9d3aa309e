"""Types and values in the words of an error message."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}


def wanted(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    """What a type takes, in words.

    >>> wanted(int | None), wanted(Literal["fail", "skip"]), wanted(tuple[float, float])
    ('a whole number or null', 'fail or skip', 'a list of 2 numbers')
    >>> wanted(Mapping[str, float])
    'names, each with a number'
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = (part for entry in arguments[1:] for part in (entry, *getattr(entry, "metadata", ())))
        return wanted(arguments[0], (*metadata, *inner))
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
    """A value as it may stand in a recipe, cut to one line.

    >>> shown("abc"), shown(None), shown((1, 2))
    ("'abc'", 'null', '[1, 2]')
    """
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…{text[-1]}"


def _bounded(name: str, metadata: tuple[Any, ...]) -> str:
    bounds = {
        kind: getattr(entry, kind)
        for entry in metadata
        for kind in ("gt", "ge", "lt", "le")
        if hasattr(entry, kind)
    }
    if bounds == {"gt": 0}:
        return name.replace("a ", "a positive ", 1)
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
    return (
        f"{name} {' and '.join(f'{words[kind]} {value}' for kind, value in bounds.items())}"
        if bounds
        else name
    )


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
