"""Rows that were left out, as JSON Lines: where each stands, why it cannot be used, and what it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import Fault

MOST_CHARACTERS = 4000
"""Characters of a row, as JSON, up to which it is written."""

_IN_LINES = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt")
"""Suffixes of files of which a row begins on its line."""


def quarantine_text(faults: Sequence[Fault]) -> str:
    """Return a line for each fault: `file`, `line`, `reason`, `detail`, and `row`, its columns or the text of its line.

    A row that was not read is looked for in its file again; `row` is null where that is large or not known.
    """
    lines = _lines_of(faults)
    return "".join(f"{json.dumps(_entry(fault, lines))}\n" for fault in faults)


def _entry(fault: Fault, lines: Mapping[tuple[str, int], str]) -> dict[str, Any]:
    row: Any = fault.row
    if row is None:
        row = lines.get((fault.source, fault.line))
    elif len(json.dumps(row, default=str)) > MOST_CHARACTERS:
        row = None
    else:
        row = json.loads(json.dumps(row, default=str))
    return {
        "file": fault.source,
        "line": fault.line or None,
        "reason": fault.reason,
        "detail": fault.detail,
        "row": row,
    }


def _lines_of(faults: Sequence[Fault]) -> dict[tuple[str, int], str]:
    """Return the text of the lines on which rows begin that could not be read."""
    wanted: dict[str, set[int]] = {}
    for fault in faults:
        if fault.row is None and fault.line and Path(fault.source).suffix.lower() in _IN_LINES:
            wanted.setdefault(fault.source, set()).add(fault.line)
    return {
        (source, number): text
        for source, numbers in wanted.items()
        for number, text in _read(source, numbers)
    }


def _read(source: str, numbers: set[int]) -> Iterator[tuple[int, str]]:
    """Yield lines of a file by their numbers, from 1; none where it cannot be read any more."""
    try:
        with open(source, "rb") as file:
            for number, line in enumerate(file, 1):
                if number in numbers and len(line) <= MOST_CHARACTERS:
                    yield number, line.decode("utf-8", "backslashreplace").rstrip("\r\n")
    except OSError:
        return
