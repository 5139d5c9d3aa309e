"""Labels of which a row has any number: the columns that hold them, and how they are recognised."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snugfit.tasks.recognition import Rows, columns_of
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.data.labels.label_sets import LabelSets

_LABELS = ("labels", "label", "tags", "topics", "categories", "genres", "keywords", "classes", "emotions")
_CLASSES = ("label", "class", "target")
"""Names of a column of one class a row, in the order in which they are looked for."""

_SEPARATORS = ("|", ";", ",")
_LISTED, _JOINED, _BINARY = 0.9, 0.85, 0.82
"""How likely rows have any number of labels: by lists, by texts with separators under a usual name, by columns of 0 and 1."""

_MOST_LABELS = 1000
_JOINED_ROWS = 0.05


@dataclass(frozen=True)
class LabelColumns:
    """The columns of rows that hold their labels.

    Args:
        settings: of `data`, that name them.
        reason: in words.
        score: how likely rows have any number of labels.
    """

    columns: tuple[str, ...]
    settings: Mapping[str, Any]
    reason: str
    score: float


def label_columns(
    rows: Rows, data: Mapping[str, Any], has_content: Callable[[str], bool]
) -> LabelColumns | None:
    """Return the columns that hold any number of labels; None where there are none, or a class too.

    Args:
        data: settings that are fixed.
        has_content: whether a column is what labels are told of, such as a text.
    """
    label, separator, count = (None, None, 0) if data.get("label_columns") else _label_column(rows, data)
    if label is not None:
        columns: tuple[str, ...] = (label,)
        settings: dict[str, Any] = {"label": label, **({"separator": separator} if separator else {})}
        reason = f"any number of {counted(count, 'label')} in column '{label}'"
        score = _JOINED if separator else _LISTED
    elif columns := _binary_columns(rows, data, has_content):
        settings = {"label_columns": columns}
        reason, score = f"a column of 0 and 1 for each of {counted(len(columns), 'label')}", _BINARY
    else:
        return None
    class_column = None if data.get("label") or data.get("label_columns") else rows.named(_CLASSES)
    if (
        class_column is not None and class_column not in columns
    ):  # what rows have besides is no label of theirs
        return None
    return LabelColumns(columns, settings, reason, score)


def label_meta(data: Any) -> dict[str, Any]:
    """Return what a task keeps with its model of the place of labels, by the settings of a recipe's `data`."""
    return {
        "separator": data.separator,
        "label_columns": list(data.label_columns or ()),
        "threshold": data.threshold,
    }


def sets_of(meta: Mapping[str, Any]) -> LabelSets:
    """Return the place of the labels, by what is kept with a model."""
    from snugfit.data.labels.label_sets import LabelSets

    return LabelSets(meta["label_column"], meta["separator"], tuple(meta["label_columns"]))


def label_sets_of(data: Any) -> LabelSets:
    """Return the place of the labels, as the settings of a recipe's `data` name it."""
    from snugfit.data.labels.label_sets import LabelSets

    return LabelSets(data.label, data.separator, data.label_columns or (), data.classes or ())


def _label_column(rows: Rows, data: Mapping[str, Any]) -> tuple[str | None, str | None, int]:
    """Return the column whose cells list labels, what separates them in texts, and how many there are."""
    given = data.get("label")
    named = rows.named(_LABELS)
    for column in (given,) if given else (*((named,) if named else ()), *rows.columns):
        cells = rows.values(column)
        listed = [cell for cell in map(_from_json, cells) if isinstance(cell, (list, tuple))]
        if cells and len(listed) == len(cells):
            names = {str(each) for cell in listed for each in cell}
            plain = all(isinstance(each, (str, int)) for cell in listed for each in cell)
            if plain and 0 < len(names) <= min(_MOST_LABELS, max(2, len(rows.rows) // 2)):
                return column, None, len(names)
    column = given or named
    if column is None or not rows.is_text(column):
        return None, None, 0
    for separator in (data["separator"],) if data.get("separator") else _SEPARATORS:
        if count := _joined(rows.values(column), separator):
            return column, separator, count
    return None, None, 0


def _from_json(cell: Any) -> Any:
    """Return the list that a text writes as JSON; what is none as it is."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _joined(cells: Sequence[str], separator: str) -> int:
    """Return of how many labels cells are joined: they are fewer than the ways in which they are joined; 0 where they are not joined."""
    parts = [[part.strip() for part in cell.split(separator) if part.strip()] for cell in cells]
    names = {part for row in parts for part in row}
    joined = sum(len(row) > 1 for row in parts) >= max(1, _JOINED_ROWS * len(cells))
    return len(names) if joined and len(names) < len(set(cells)) and len(names) <= _MOST_LABELS else 0


def _binary_columns(
    rows: Rows, data: Mapping[str, Any], has_content: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the columns of 0 and 1, where there are two or more and nothing else but contents."""
    if given := data.get("label_columns"):
        return columns_of(given)
    if data.get("label"):
        return ()
    columns = tuple(column for column in rows.columns if set(rows.classes(column)) == {"0", "1"})
    others = [column for column in rows.columns if column not in columns and not has_content(column)]
    return columns if len(columns) > 1 and not others else ()
