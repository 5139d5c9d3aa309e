"""Columns of a table, found by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snugfit.data.bad_rows import shorten
from snugfit.data.sources import Table
from snugfit.errors import DataError, SettingError, nearest, short_path


def check_columns(table: Table, wanted: Mapping[str, Sequence[str]], hint: str = "") -> None:
    """See that the table has the columns that each setting names.

    Args:
        wanted: the columns by the full name of the setting that asks for them.
        hint: what else may be done where a column is not there.
    Raises:
        SettingError: one column is asked for twice.
        DataError: a column is not there.
    """
    asked: dict[str, str] = {}
    for setting, columns in wanted.items():
        for column in columns:
            if column in asked:
                raise SettingError(
                    setting, f"column '{column}' is already used by {asked[column]}", "Name another column."
                )
            asked[column] = setting
    for part in table.each:
        for column, setting in asked.items():
            if column in part.columns or (table.parts and not part.rows):
                continue
            other = f" Or give one of them that name: rename: {{THEIRS: {column}}}." if table.parts else ""
            shown = ", ".join(f"'{shorten(name)}'" for name in part.columns[:20])
            raise DataError(
                setting,
                f"{short_path(part.source)} has no column '{column}'",
                f"{_hint(column, part.columns)}Its columns are {shown}{' and more' if len(part.columns) > 20 else ''}.{other}{hint and f' {hint}'}",
            )


def _hint(column: str, columns: Sequence[str]) -> str:
    guess = nearest(column, columns)
    return f"{guess} " if guess.startswith("Did you mean") else ""
