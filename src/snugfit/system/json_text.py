"""JSON that somebody else may have written: bounded in its depth, as whoever reads it walks through it by recursion."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 200
"""Lists and objects inside each other. Python's own limit is 1,000 calls, and depends on who calls."""


_DECODER = json.JSONDecoder()


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    >>> parse_json('{"rate": 1e-3}')
    {'rate': 0.001}

    Raises:
        ValueError: it is not JSON, or is nested more than `MAX_DEPTH` deep.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(
        value,
        text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"["),
    )
    return value


def value_at(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at this character of a text, and the character behind it.

    >>> value_at('[{"rate": 1}]', 1)
    ({'rate': 1}, 12)

    Raises:
        ValueError: as of `parse_json`.
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    _check_depth(value, text.count("{", start, end) + text.count("[", start, end))
    return value, end


def _check_depth(value: Any, opened: int) -> None:
    """See that a value of a text that opens so many lists and objects is not too deep.

    Raises:
        ValueError: it is.
    """
    if opened > MAX_DEPTH and _is_deep(value):
        raise ValueError(_TOO_DEEP)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return False
    return any(isinstance(each, (dict, list)) for each in level)


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} levels deep"
