"""JSON that somebody else may have written: bounded in its depth, as whoever reads it walks through it by recursion."""

from __future__ import annotations

import json
from typing import Any

MAX_DEPTH = 200
"""Lists and objects inside each other. Python's own limit is 1,000 calls, and depends on who calls."""


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
    opened = (
        text.count("{") + text.count("[") if isinstance(text, str) else text.count(b"{") + text.count(b"[")
    )
    if opened > MAX_DEPTH and _is_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


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
