"""The way in which a part of the training rows is held out: drawn row by row, by whole groups, or the last ones by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snugfit.core.settings import shown
from snugfit.errors import SettingError, nearest

VALIDATION = "data.validation"
SHARE, GROUP, TIME = _KEYS = ("share", "group", "time")
_FORM = "Write {share: 0.1, group: COLUMN} or {share: 0.1, time: COLUMN}."


@dataclass(frozen=True)
class HoldOut:
    """A share of the training rows to validate on, chosen by columns.

    Args:
        share: of all rows, between 0 and 1.
        group: columns; rows that are equal in all of them stay together on one side.
        time: a column of dates or numbers; the rows with its last values are held out.
    """

    share: float
    group: tuple[str, ...] = ()
    time: str | None = None


SHARES = (int, float, HoldOut)
"""Types of what says how many of the training rows are held out, and names no source of its own."""


def share_of(validation: float | HoldOut) -> float:
    """Return the share of the training rows that is held out.

    >>> share_of(0.2), share_of(HoldOut(0.1, time="date"))
    (0.2, 0.1)
    """
    return validation.share if isinstance(validation, HoldOut) else validation


def check_fraction(fraction: float, setting: str = VALIDATION) -> None:
    """See that a fraction lies strictly between 0 and 1.

    Raises:
        SettingError: it does not.
    """
    if not 0.0 < fraction < 1.0:
        raise SettingError(
            setting,
            f"{fraction:g} is not a fraction between 0 and 1",
            "Write 0.1 for a tenth of the rows, a file, or null for no validation.",
        )


def is_hold_out(written: Any) -> bool:
    """Return whether `data.validation` as a recipe has it says how rows are held out, and names no sources.

    >>> is_hold_out({"share": 0.1, "group": "patient"}), is_hold_out({"share": "a.csv"}), is_hold_out({"group": "patient"})
    (True, False, True)
    """
    if not isinstance(written, Mapping) or not written:
        return False
    if SHARE in written:
        return not isinstance(written[SHARE], (str, Mapping))
    # a source may have one of these names; then it is a file
    return set(written) <= {GROUP, TIME} and not any(_is_file(value) for value in written.values())


def columns_in(written: Any) -> tuple[str, ...]:
    """Return the columns by which `data.validation` holds rows out, as a recipe has it before it is checked.

    >>> columns_in({"share": 0.1, "group": ["ward", "bed"]}), columns_in({"share": 0.1, "time": "date"}), columns_in("test.csv")
    (('ward', 'bed'), ('date',), ())
    """
    if not is_hold_out(written):
        return ()
    group = written.get(GROUP)
    columns = [*group] if isinstance(group, (list, tuple)) else [group]
    return tuple(column for column in (*columns, written.get(TIME)) if isinstance(column, str))


def _is_file(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, str) and any(sign in value for sign in "./:"))


def hold_out_of(written: Mapping[str, Any]) -> HoldOut:
    """Return the way rows are held out that a recipe says.

    Raises:
        SettingError: it cannot be read as such; names the setting below `data.validation`.

    >>> hold_out_of({"share": 0.1, "group": "patient"})
    HoldOut(share=0.1, group=('patient',), time=None)
    """
    for key in written:
        if key not in _KEYS:
            raise SettingError(f"{VALIDATION}.{key}", "there is no such setting", nearest(str(key), _KEYS))
    share, group, time = written.get(SHARE), written.get(GROUP), written.get(TIME)
    if share is None:
        raise SettingError(f"{VALIDATION}.{SHARE}", "is missing", f"Give the part to hold out. {_FORM}")
    if isinstance(share, bool) or not isinstance(share, (int, float)):
        raise SettingError.must_be(f"{VALIDATION}.{SHARE}", "a fraction between 0 and 1", shown(share))
    check_fraction(share, f"{VALIDATION}.{SHARE}")
    if group is not None and time is not None:
        raise SettingError(
            VALIDATION, "has group and time, and rows are held out by one of them", "Remove one."
        )
    columns = (group,) if isinstance(group, str) else group
    if columns is not None and not _are_names(columns):
        raise SettingError.must_be(
            f"{VALIDATION}.{GROUP}", "a name of a column or a list of names", shown(group)
        )
    if time is not None and not (isinstance(time, str) and time):
        raise SettingError.must_be(f"{VALIDATION}.{TIME}", "a name of a column", shown(time))
    return HoldOut(float(share), tuple(columns or ()), time)


def _are_names(columns: Any) -> bool:
    listed = isinstance(columns, (list, tuple)) and len(columns) > 0
    return listed and all(isinstance(column, str) and column for column in columns)
