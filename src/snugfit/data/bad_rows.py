"""Faults of rows: found one by one, told together, and treated by a policy."""

from __future__ import annotations

import numbers
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snugfit.errors import DataError, SettingError, nearest, short_path
from snugfit.units import counted

POLICIES = ("fail", "skip")
SHOWN = 5
NOT_UTF8 = "not UTF-8"
"""The reason of a row whose bytes are no text."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one row cannot be used; `reason` is the kind that is counted, `detail` what was found here.

    `line` is 0 where the source is the whole of the row, such as a picture. `row` is what was read of it, where it could be read.
    """

    source: str
    line: int
    reason: str
    detail: str
    row: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class BadRow(DataError):
    """An error of one row that cannot be used; where rows are read, it becomes a fault that the policy treats."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail, "Correct the row, or leave it out with data.bad_rows: skip.")
        self.reason = reason
        self.detail = detail

    def at(self, source: str, line: int, row: Mapping[str, Any] | None = None) -> Fault:
        return Fault(source, line, self.reason, self.detail, row)


def check_policy(policy: str, setting: str = "data.bad_rows") -> None:
    """See that `policy` is 'fail' or 'skip'.

    Raises:
        SettingError: it is something else.
    """
    if policy not in POLICIES:
        raise SettingError(setting, f"'{policy}' is not a policy", nearest(policy, POLICIES))


_LEFT_OUT: ContextVar[list[Fault] | None] = ContextVar("rows that are left out", default=None)


@contextmanager
def left_out_rows() -> Iterator[list[Fault]]:
    """Temporarily list the faults of the rows that `settle` leaves out, of whichever source."""
    faults: list[Fault] = []
    token = _LEFT_OUT.set(faults)
    try:
        yield faults
    finally:
        _LEFT_OUT.reset(token)


def check_rows_left(rows: Sized, source: str) -> None:
    """Refuse a source of which no row is left that can be used.

    Raises:
        DataError: none is.
    """
    if not rows:
        raise DataError(
            "data", f"no usable row is left in {source}", "Correct the rows, or name another file."
        )


def settle(faults: Sequence[Fault], policy: str) -> dict[str, int]:
    """Apply the policy: nothing to do, one error for all faults, or the number of skipped rows by reason.

    Raises:
        DataError: there are faults and the policy is 'fail'.
    """
    check_policy(policy)
    listed = _LEFT_OUT.get()
    if policy == "skip" and listed is not None:
        listed.extend(faults)
    counts = dict(Counter(fault.reason for fault in faults).most_common())
    if not faults or policy == "skip":
        return counts
    shown = [f"  {fault.place}: {fault.detail}" for fault in faults[:SHOWN]]
    if len(faults) > SHOWN:
        shown.append(f"  … and {len(faults) - SHOWN} more")
    reasons = ", ".join(f"{reason} ({count})" for reason, count in counts.items())
    rows = f"{counted(len(faults), 'row')} cannot"
    save = next(
        (f"{as_utf8(fault.source)} Or correct" for fault in faults if fault.reason == NOT_UTF8), "Correct"
    )
    raise DataError(
        "data",
        "\n".join([f"{rows} be used: {reasons}.", *shown]) + "\n",
        f"{save} them, or leave them out (they are counted and reported): data.bad_rows: skip in a recipe, data.bad_rows=skip behind train, --bad-rows skip behind other commands.",
    )


def as_utf8(source: str, encoding: str = "latin1") -> str:
    """Return how a file of another encoding is saved anew, with paths as a shell takes them.

    >>> as_utf8("my rows/old.csv")
    "Save it as UTF-8, for example: iconv -f latin1 -t utf-8 'my rows/old.csv' > old-utf8.csv"
    """
    path = Path(source)
    other = shlex.quote(f"{path.stem}-utf8{path.suffix}")
    return f"Save it as UTF-8, for example: iconv -f {encoding} -t utf-8 {shlex.quote(short_path(source))} > {other}"


def text_of(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    r"""Return the text of a row: its columns joined by a line break.

    "NA", "null" and the like are texts as any other. A column that is null counts as empty.

    Raises:
        BadRow: a column is missing or not text, or all of them are empty.

    >>> text_of({"title": "NA", "body": "null"}, ["title", "body"])
    'NA\nnull'
    """
    parts = []
    for column in columns:
        if column not in row:
            raise BadRow("missing column", f"the row has no '{column}'")
        value = row[column]
        if value is not None and not isinstance(value, str):
            raise BadRow("not text", f"{column} is {kind_of(value)} ({shorten(value)}), not text")
        parts.append(value or "")
    if not any(part.strip() for part in parts):
        raise BadRow("empty text", f"{' and '.join(columns)} {'is' if len(columns) == 1 else 'are'} empty")
    text = "\n".join(parts)
    check_encodable(text)
    return text


def check_encodable(text: str) -> None:
    r"""See that a text can be written as UTF-8.

    Raises:
        BadRow: half of a surrogate pair (JSON's "\ud83d" alone), which no tokenizer takes.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRow(
            "undecodable bytes",
            f"half of a surrogate pair (U+{ord(text[error.start]):04X}) at character {error.start}",
        ) from error


def label_of(row: Mapping[str, Any], column: str) -> tuple[str, str]:
    """Return the kind ('text', 'a whole number', 'true or false') and the name of a row's label.

    Raises:
        BadRow: no label, or something that names no class.

    >>> label_of({"y": 3}, "y")
    ('a whole number', '3')
    """
    if column not in row:
        raise BadRow("missing label", f"the row has no '{column}'")
    value = row[column]
    if value is None or (isinstance(value, float) and value != value):
        raise BadRow("missing label", f"{column} is {'null' if value is None else 'NaN'}")
    kind = kind_of(value)
    if kind not in ("text", "a whole number", "true or false"):
        raise BadRow(
            "unusable label", f"{column} is {kind} ({shorten(value)}); a class is text or a whole number"
        )
    name = str(value)
    if not name.strip():
        raise BadRow("missing label", f"{column} is empty")
    check_encodable(name)
    return kind, name


def kind_of(value: object) -> str:
    """Return what a value is, in words.

    >>> kind_of("a"), kind_of(True), kind_of(1), kind_of(1.0), kind_of([])
    ('text', 'true or false', 'a whole number', 'a fraction', 'a list')
    """
    if value is None:
        return "null"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return "true or false"
    if isinstance(value, numbers.Integral):
        return "a whole number"
    if isinstance(value, numbers.Real):
        return "a fraction"
    return f"a {type(value).__name__}"


def shorten(value: object, length: int = 40) -> str:
    r"""Return a value on one line, cut to `length` characters.

    >>> shorten("one\ntwo three", 9)
    'one two …'
    """
    text = " ".join(str(value).split())
    return text if len(text) <= length else text[: length - 1] + "…"
