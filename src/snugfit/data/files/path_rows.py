"""Rows with paths of files: a folder of them, with a folder for each class, or a table with a column of paths."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import BadRow, Fault
from snugfit.data.files.file_kinds import files_in, is_shards
from snugfit.data.labels.label_sets import LabelSets
from snugfit.data.sources import RowSource, Table, read_table
from snugfit.data.splits.near_duplicates import Near
from snugfit.data.usable_rows import Part, part_of_table
from snugfit.errors import DataError
from snugfit.system.user_objects import is_python_path


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """Files of one kind, such as pictures.

    Args:
        noun, plural: in messages.
        setting: that names the column of their paths.
        digest: of a file, by its path, from the parts that are looked at; it raises a `BadRow` for one that cannot be used.
        near: the search for files that are nearly equal; None where there is none.
    """

    noun: str
    plural: str
    suffixes: Set[str]
    setting: str
    digest: Callable[[str], str]
    near: Near | None = None


def read_files(
    source: RowSource,
    setting: str,
    kind: FileKind,
    *,
    column: str,
    label: str | LabelSets | None,
    known: Sequence[str] | None = None,
    folder: Path | None = None,
) -> tuple[Part, list[str]]:
    """Return the files of a source that can be used, the faults of the others, and a digest of each file.

    Args:
        source: a folder of files, in folders named by their classes where labels are asked for; or rows with a column of paths,
            which are relative to the file that they stand in.
        column, label: columns; of a folder the names that its rows get. No label is read where it is None.
        known: labels that there may be.
    Returns:
        The texts of the part are paths.
    Raises:
        DataError: the source cannot be used as a whole.
    """
    table, base = _table(source, setting, kind, column, label, folder)
    part = part_of_table(table, (column,), label, known, kind.setting)
    good: list[int] = []
    faults, written, paths, digests = list(part.faults), [], [], []
    for place, (row, text) in enumerate(zip(part.row_indices, part.texts, strict=True)):
        path = os.path.join(base, os.path.expanduser(text))
        try:
            digest = kind.digest(path)
        except BadRow as bad:
            named = table.names is not None or table.base is not None  # by its place
            detail = bad.detail if named else f"{path} {bad.detail}"
            faults.append(Fault(*table.place(row), bad.reason, detail, table.rows[row]))
            continue
        good.append(place)
        written.append(text)
        paths.append(path)
        digests.append(digest)
    part = replace(
        part,
        row_indices=[part.row_indices[place] for place in good],
        texts=paths,
        labels=[part.labels[place] for place in good],
        faults=sorted(faults, key=lambda fault: fault.line),
    )
    seen = "\n".join(
        [table.sha256, *(f"{text} {digest}" for text, digest in zip(written, digests, strict=True))]
    )
    sha256 = hashlib.sha256(seen.encode("utf-8")).hexdigest()
    part = replace(part, table=replace(table, sha256=sha256))
    return part, digests


def rows_of_files(
    kind: FileKind,
    source: RowSource,
    setting: str,
    *,
    column: str,
    label: str | LabelSets | None,
    folder: Path | None = None,
) -> Part:
    """Return the files of a source that can be used as rows to write elsewhere, with whole paths and labels; the arguments are those of `read_files`."""
    part, digests = read_files(source, setting, kind, column=column, label=label, folder=folder)
    own_columns: Sequence[str] = ()
    classes: tuple[str, ...] | None = None
    if isinstance(label, LabelSets):
        own_columns, classes, label = label.columns, label.names_in(part.labels), label.column
    records: list[dict[str, Any]] = []
    for row, path, own in zip(part.row_indices, part.texts, part.labels, strict=True):
        cells = {name: part.table.rows[row][name] for name in own_columns}
        if label is not None and not cells:
            cells = {label: own}
        records.append({column: os.path.abspath(path), **cells})
    return replace(part, records=records, digests=digests, classes=classes)


def base_of(table: Table, source: RowSource, folder: Path | None) -> str:
    """Return the folder that paths in the rows of a source are relative to: that of the file or the shards that they stand in."""
    here = str(folder or Path.cwd())
    if table.base is not None or _is_function(source):
        return table.base or here
    return os.path.dirname(os.path.join(here, os.path.expanduser(str(source))))


def _is_function(source: RowSource) -> bool:
    return callable(source) or (isinstance(source, str) and is_python_path(source))


def _table(
    source: RowSource,
    setting: str,
    kind: FileKind,
    column: str,
    label: str | LabelSets | None,
    folder: Path | None,
) -> tuple[Table, str]:
    """Return the rows of a source, and the folder that its paths are relative to."""
    path = os.path.join(folder or Path.cwd(), os.path.expanduser(str(source)))
    if _is_function(source) or is_shards(source, folder) or not os.path.isdir(path):
        table = read_table(source, setting=setting, folder=folder)
        return table, base_of(table, source, folder)
    files = files_in(Path(path), kind.suffixes)
    if not files:
        raise DataError(
            setting,
            f"{source} holds no {kind.noun} ({', '.join(sorted(kind.suffixes))})",
            "Name another folder.",
        )
    if isinstance(label, LabelSets):
        raise DataError(
            setting,
            f"{source} is a folder, and a {kind.noun} that lies in one has one class, its folder",
            f"Give a table with a column of paths of {kind.plural} and their labels.",
        )
    rows: list[dict[str, Any]] = [{column: os.path.relpath(file, path)} for file in files]
    if label is not None:
        classes = [file.relative_to(path).parts[0] if file.parent != Path(path) else None for file in files]
        loose = [file.name for file, name in zip(files, classes, strict=True) if name is None]
        if loose:
            raise DataError(
                setting,
                f"{source} holds {kind.plural} that lie in no folder of a class, such as {loose[0]} ({len(loose):,} of {len(files):,})",
                "Put each into a folder named by its class, or give a table with columns of paths and labels.",
            )
        rows = [{**row, label: name} for row, name in zip(rows, classes, strict=True)]
    columns = (column,) if label is None else (column, label)
    lines = list(range(1, len(rows) + 1))
    return Table(str(source), columns, rows, lines, "", names=list(map(str, files))), path
