"""Label sets: the labels of rows that have any number of them, in one column or in a column of 0 and 1 for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snugfit.data.bad_rows import BadRow, label_of, shorten
from snugfit.data.labels.class_names import sort_labels
from snugfit.data.tables.table_cells import parsed_cell
from snugfit.errors import DataError, SettingError

LabelSet = tuple[str, ...]
"""The names of a row's labels, each once; none is a set too."""

_RARE = 5
_TRUTH = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class LabelSets:
    """The place of the labels in rows.

    Args:
        column: of lists of names, of such lists in JSON, or of names with the separator between them.
        separator: between the names in a text.
        columns: in place of that column one for each label, of 0 and 1, by the label's name.
        names: of the labels there may be; empty for any.
    """

    column: str = "label"
    separator: str = ";"
    columns: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.separator:
            raise SettingError(
                "data.separator", "is empty", "Give what stands between the labels of a row, such as ';'."
            )
        if self.columns and self.names:
            raise SettingError(
                "data.classes", "names labels that data.label_columns names too", "Leave one of them out."
            )

    @property
    def asked(self) -> dict[str, Sequence[str]]:
        """The columns by the setting that names them."""
        return {"data.label_columns": self.columns} if self.columns else {"data.label": [self.column]}

    def of(self, row: Mapping[str, Any]) -> tuple[str, LabelSet]:
        """Return the kind of a row's labels, as `label_of` has it, and their names; the kind is empty where there are none.

        Raises:
            BadRow: it does not say which labels it has.

        >>> LabelSets().of({"label": "b; a"}), LabelSets().of({"label": []})
        (('text', ('b', 'a')), ('', ()))
        >>> LabelSets(columns=("rude", "sad")).of({"rude": "0", "sad": 1})
        ('text', ('sad',))
        """
        if self.columns:
            names = tuple(name for name in self.columns if _is_one(row, name))
            return "text" if names else "", names
        if self.column not in row:
            raise BadRow("missing label", f"the row has no '{self.column}'")
        labels = [label_of({self.column: value}, self.column) for value in self._listed(row[self.column])]
        kinds = sorted({kind for kind, _ in labels})
        if len(kinds) > 1:
            raise BadRow("mixed label types", f"the labels in {self.column} are {' and '.join(kinds)}")
        listed = tuple(dict.fromkeys(name.strip() for _, name in labels))
        if self.names and (unknown := [name for name in listed if name not in self.names]):
            raise BadRow("unknown label", f"the label '{shorten(unknown[0])}' is not among data.classes")
        return kinds[0] if kinds else "", listed

    def names_in(self, sets: Sequence[LabelSet]) -> tuple[str, ...]:
        """Return the names of labels in order: those that are set, or else all that rows have, sorted."""
        return self.columns or self.names or sort_labels({name for names in sets for name in names})

    def _listed(self, cell: Any) -> Sequence[Any]:
        """Return the labels that a cell lists."""
        if hasattr(cell, "tolist") and not isinstance(cell, str):  # an array, as Parquet has lists
            cell = cell.tolist()
        if isinstance(cell, (list, tuple)):
            return cell
        if not isinstance(cell, str):
            return [cell]
        if cell.lstrip().startswith("["):
            try:
                values = json.loads(cell)
            except ValueError as error:
                raise BadRow(
                    "unusable label", f"{self.column} is no list in JSON ({shorten(error)}): {shorten(cell)}"
                ) from error
            return values if isinstance(values, list) else [values]
        return [part for part in cell.split(self.separator) if part.strip()]


def check_names(names: Sequence[str], source: str, labels: LabelSets) -> None:
    """See that some row has a label.

    Raises:
        DataError: none has.
    """
    if not names:
        raise DataError(
            "data.label",
            f"no usable row of {source} has a label in column '{labels.column}'",
            "Name the column of labels, or columns of 0 and 1 as data.label_columns.",
        )


def strata_of(sets: Sequence[LabelSet]) -> list[str | None]:
    """Return the rarest label of each set, by which rows are drawn so that rare labels are in both parts; None of an empty one.

    >>> strata_of([("a", "b"), ("a",), ()])
    ['b', 'a', None]
    """
    counts = Counter(name for names in sets for name in names)
    return [min(names, key=lambda name: (counts[name], name)) if names else None for names in sets]


def rare_label_warnings(counts: Mapping[str, int]) -> list[str]:
    """Return what to say of labels that hardly any row to train on has.

    Args:
        counts: of rows to train on, by label.
    """
    rare = [name for name, count in counts.items() if count < _RARE]
    if not rare:
        return []
    shown = ", ".join(f"{name!r} ({counts[name]})" for name in rare[:5])
    more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
    return [
        f"fewer than {_RARE} rows to train on have the labels {shown}{more}: they will hardly be learned."
    ]


def _is_one(row: Mapping[str, Any], column: str) -> bool:
    if column not in row:
        raise BadRow("missing label", f"the row has no '{column}'")
    cell = row[column]
    number = _TRUTH.get(str(cell).strip().casefold(), parsed_cell(cell))
    if number is None:
        raise BadRow("missing label", f"{column} is empty")
    if number not in (0.0, 1.0):
        raise BadRow("unusable label", f"{column} is {shorten(cell)}, neither 0 nor 1")
    return number == 1.0
