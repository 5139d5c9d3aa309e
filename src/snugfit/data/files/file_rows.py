"""The rows of one source to evaluate on or to predict for, as examples of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from snugfit.errors import DataError

if TYPE_CHECKING:
    from snugfit.data.report import DataReport
    from snugfit.data.sources import RowSource

Collate = Callable[[list[Any]], Any]


class MapStyle(Protocol):
    """Examples by their places: a list, or a data set that makes them when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Any: ...


@dataclass(frozen=True)
class FileRows:
    """Examples of one source in its order, each beside its input row; `labels` only if asked for."""

    examples: MapStyle
    rows: list[dict[str, Any]]
    lines: list[int]
    columns: tuple[str, ...]
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]


def read_rows(
    source: RowSource,
    encode: Callable[[Mapping[str, Any]], Any],
    collate: Collate,
    *,
    bad_rows: str = "fail",
    setting: str = "data",
    folder: Path | None = None,
) -> FileRows:
    """Read a file whose rows are encoded one by one: the way of a task that needs nothing else.

    Args:
        encode: the example of a row; it raises a `BadRow` for one that cannot be used.
        bad_rows: "fail" or "skip", as `data.bad_rows` has it.
        setting: that names the source, for messages.
        folder: where a relative path is looked for.
    Raises:
        DataError: the source cannot be read, rows cannot be used, or none is left.
    """
    from snugfit.data.bad_rows import BadRow, settle
    from snugfit.data.examples import Examples
    from snugfit.data.report import DataReport
    from snugfit.data.sources import read_table

    table = read_table(source, setting=setting, folder=folder)
    faults, examples, places = list(table.faults), [], []
    for place, row in enumerate(table.rows):
        try:
            examples.append(encode(row))
            places.append(place)
        except BadRow as fault:
            faults.append(table.fault(place, fault))
    skipped = settle(faults, bad_rows)
    if not examples:
        raise DataError(setting, f"{table.source} has no row that can be used", "Give another file.")
    return FileRows(
        examples=Examples.of(examples, table, places),
        rows=[table.rows[place] for place in places],
        lines=[table.lines[place] for place in places],
        columns=table.columns,
        collate=collate,
        report=DataReport(train=0, validation=len(examples), skipped=skipped),
        fingerprints=table.fingerprints,
    )
