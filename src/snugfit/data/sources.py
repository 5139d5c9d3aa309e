"""The sources of rows: CSV, TSV, JSON, Parquet and text files, Hugging Face data sets, and Python functions; and the columns that a table has to have."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import BadRow, Fault, shorten
from snugfit.data.files.file_formats import READERS
from snugfit.data.files.file_kinds import is_hub_name, is_saved, is_shards, path_of
from snugfit.data.files.hub_rows import read_hub, read_saved
from snugfit.data.files.shards import read_shards
from snugfit.data.frames import frame_rows
from snugfit.data.lazy.lazy_rows import LARGE_FILE, is_larger, read_large
from snugfit.data.lazy.lazy_sequence import Chained, Made
from snugfit.data.lazy.spooled_rows import GatheredRows
from snugfit.data.named_sources import Sources
from snugfit.errors import DataError, SettingError, nearest, nearest_file, short_path
from snugfit.system.user_objects import describe, import_path, is_python_path, load_object

RowSource = str | Path | Callable[[], Iterable[Mapping[str, Any]]] | Sources
"""A file, tar files in WebDataset's form, a data set of Hugging Face (hf://OWNER/NAME, or its folder), `package.module:function`, a function that returns an iterable of rows, or
several of them by name."""


_WITH_HEADER = (".csv", ".tsv")
_JSON_LINES = (".jsonl", ".ndjson")
_BY_LINES = (*_WITH_HEADER, *_JSON_LINES, ".json", ".txt")
_DECOMPRESS = {
    ".gz": "gunzip -k",
    ".bz2": "bunzip2 -k",
    ".xz": "unxz -k",
    ".zst": "unzstd -k",
    ".zip": "unzip",
}
"""Endings of compressed files, each with the command that writes the file beside them."""

_SPREADSHEETS = (".xlsx", ".xls", ".ods")
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
"""Kinds of files that are most often given in place of rows."""

_BEGINNING_BYTES = 2**20
"""Of a file of rows, which are read in a moment."""


@dataclass(frozen=True)
class Table:
    """Rows with where they came from.

    Rows of a large file of JSON Lines stay in it, and are read when they are asked for.

    `lines[i]` is the line on which `rows[i]` begins (its number, from 1, for a Python function). `faults` are
    the rows that could not be read and are not among `rows`. `sha256` is that of the file's bytes, or of the
    rows. `renamed` are the names that columns were given, by those that they have in the source. `names` are those of
    rows that are spoken of by them in place of their lines, and `base` is the folder that paths in such rows are relative to.

    Of several `sources`, `parts` are their tables, whose rows follow one another.
    """

    source: str
    columns: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    lines: Sequence[int]
    sha256: str
    faults: tuple[Fault, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] | None = None
    base: str | None = None
    sources: Sources | None = None
    parts: tuple[Table, ...] = ()

    @property
    def each(self) -> tuple[Table, ...]:
        """The table of each source."""
        return self.parts or (self,)

    @functools.cached_property
    def starts(self) -> tuple[int, ...]:
        """The first row of each source."""
        return tuple(itertools.accumulate((len(part.rows) for part in self.each), initial=0))[:-1]

    @property
    def fingerprints(self) -> dict[str, str]:
        """The sha256 of each source, by the source's name."""
        return {part.source: part.sha256 for part in self.each}

    def place(self, row: int) -> tuple[str, int]:
        """Return the source of a row, and its line there; or its name, and no line."""
        number = bisect_right(self.starts, row) - 1
        part = self.each[number]
        if part.names is not None:
            return part.names[row - self.starts[number]], 0
        return part.source, self.lines[row]

    def fault(self, row: int, bad: BadRow) -> Fault:
        """Return what is wrong with a row, with its place."""
        return bad.at(*self.place(row), self.rows[row])

    def in_order(self, faults: Iterable[Fault]) -> list[Fault]:
        """Return faults in the order of the lines that they are on, source by source."""
        number = {part.source: place for place, part in enumerate(self.each)}
        return sorted(faults, key=lambda fault: (number.get(fault.source, 0), fault.line))


def read_table(source: RowSource, *, setting: str = "data", folder: Path | None = None) -> Table:
    """Read all rows of a source; a relative path is looked for in `folder`.

    Nothing is converted: "NA" and "null" in a CSV stay the text they are.

    Raises:
        DataError: the source as a whole cannot be read (missing, empty, binary, no header, unknown kind).
    """
    if isinstance(source, Sources):
        return _together(source, setting, folder)
    if callable(source):
        name = getattr(source, "__qualname__", type(source).__name__)
        return _table_of(_rows_of_function(source, name, setting, folder), name, setting)
    if isinstance(source, str) and is_python_path(source):
        function = load_object(source, setting=setting, folder=folder, error=DataError)
        if not callable(function):
            raise DataError(
                setting,
                f"'{source}' is {type(function).__name__}, not a function that returns rows",
                "Name a function: package.module:function.",
            )
        return _table_of(_rows_of_function(function, source, setting, folder), source, setting)
    if is_hub_name(str(source)):
        return _table_of(read_hub(str(source), setting), str(source), setting)
    if is_shards(source, folder):
        return _table_of_shards(str(source), setting, folder)
    path = path_of(str(source), folder)
    if is_saved(path):
        return _table_of(read_saved(path, str(source), setting), str(source), setting)
    return _read_file(str(source), setting, folder)


def _together(sources: Sources, setting: str, folder: Path | None) -> Table:
    """Return the rows of several sources, one after the other."""
    parts = []
    for source in sources.each:
        here = f"{setting}.{source.name}" if source.is_named else setting
        table = read_table(source.file, setting=here, folder=folder)
        parts.append(_with_names(table, source.rename, here) if source.rename else table)
    columns = dict.fromkeys(column for part in parts for column in part.columns)
    digests = json.dumps([part.sha256 for part in parts])
    return Table(
        str(sources),
        tuple(columns),
        _one_after_the_other([part.rows for part in parts]),
        [line for part in parts for line in part.lines],
        hashlib.sha256(digests.encode()).hexdigest(),
        tuple(fault for part in parts for fault in part.faults),
        sources=sources,
        parts=tuple(parts),
    )


def _one_after_the_other(parts: Sequence[Sequence[dict[str, Any]]]) -> Sequence[dict[str, Any]]:
    """Return the rows of parts, of which some may stay in their files."""
    if all(isinstance(part, list) for part in parts):
        return list(itertools.chain.from_iterable(parts))
    return Chained(parts)


def _with_names(table: Table, renamed: Mapping[str, str], setting: str) -> Table:
    """Return a table whose columns have other names.

    Raises:
        DataError: a column is not there, or two would have one name.
    """
    columns = new_names(table.source, table.columns, renamed, setting)
    rows = Made(table.rows, functools.partial(renamed_row, renamed))
    return replace(
        table,
        columns=columns,
        rows=list(rows) if isinstance(table.rows, list) else rows,
        renamed=renamed,
    )


def renamed_row(renamed: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row by the new names of its columns."""
    return {renamed.get(column, column): value for column, value in row.items()}


def new_names(
    source: str, columns: Sequence[str], renamed: Mapping[str, str], setting: str
) -> tuple[str, ...]:
    """Return the columns of a source by their new names.

    Raises:
        DataError: a column is not there, or two would have one name.
    """
    for column in renamed:
        if column not in columns:
            raise DataError(
                f"{setting}.rename", f"{source} has no column '{column}'", nearest(column, columns)
            )
    new = tuple(renamed.get(column, column) for column in columns)
    twice = [column for column in new if new.count(column) > 1]
    if twice:
        raise DataError(
            f"{setting}.rename",
            f"two columns of {source} would be called '{twice[0]}'",
            "Rename the other one too.",
        )
    return new


def find_file(path: str | Path, setting: str, folder: Path | None = None) -> Path:
    """Return a data file; a relative path is looked for in `folder`.

    Raises:
        DataError: there is none, with the nearest name there is; or a link leads to none.
    """
    full = path_of(path, folder)
    if full.is_symlink() and not full.exists():
        raise DataError(
            setting,
            f"{short_path(str(path))} is a link to {os.readlink(full)}, where there is no file",
            "Let it lead to one.",
        )
    if full.is_dir():
        raise DataError(setting, f"{short_path(str(path))} is a folder", "Name one file in it.")
    if not full.exists():
        names = [entry.name for entry in full.parent.iterdir()] if full.parent.is_dir() else []
        whole = str(full.absolute())
        raise DataError(
            setting,
            f"there is no file {short_path(str(path))}{'' if short_path(str(path)) == whole else f' (looked for {whole})'}",
            nearest_file(full.name, names) or "Correct the path.",
        )
    return full


def fingerprints_of(tables: Iterable[Table]) -> dict[str, str]:
    """Return the sha256 of each source of tables, by its name."""
    return {source: digest for table in tables for source, digest in table.fingerprints.items()}


def by_present_paths(saved: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """Return the saved fingerprints, with the present path of each file that was moved: one of the same name and content.

    >>> by_present_paths({"/here/a.csv": "12", "/here/b.csv": "34"}, {"/there/a.csv": "12", "/there/b.csv": "56"})
    {'/there/a.csv': '12', '/here/b.csv': '34'}
    """
    new = {(Path(path).name, sha256): path for path, sha256 in present.items() if path not in saved}
    return {
        path if path in present else new.get((Path(path).name, sha256), path): sha256
        for path, sha256 in saved.items()
    }


def check_fingerprints(saved: Mapping[str, str], present: Mapping[str, str], folder: str = "RUN") -> None:
    """See that data files are those a run began with, wherever they lie now.

    Args:
        folder: the run's, for commands.
    Raises:
        DataError: a file changed, or is not among those present.
    """
    for source, sha256 in by_present_paths(saved, present).items():
        if present.get(source) == sha256:
            continue
        state = "is not used any more" if source not in present else "has changed"
        raise DataError(
            "data",
            f"{source} {state} since this run began (sha256 {sha256[:12]}… then, {present.get(source, 'none')[:12]}… "
            "now)",
            f"Put the file back, start a new run with snugfit train, or go on with the change: snugfit resume {folder} "
            "--accept-changes data",
        )


def read_beginning(source: RowSource, *, setting: str, folder: Path | None = None) -> Table | None:
    """Return the table that the beginning of a source makes, which has all of its columns; None where only all of it says them.

    It is read as `read_table` reads it, and no library is imported for it. Of several sources those are left out whose columns are not known.

    Raises:
        DataError: as `read_table`, as far as the beginning shows it.
    """
    if isinstance(source, Sources):
        parts = []
        for each in source.each:
            here = f"{setting}.{each.name}" if each.is_named else setting
            part = read_beginning(each.file, setting=here, folder=folder)
            if part is not None:
                parts.append(_with_names(part, each.rename, here) if each.rename else part)
        return Table(str(source), (), [], [], "", sources=source, parts=tuple(parts)) if parts else None
    if callable(source) or (isinstance(source, str) and is_python_path(source)):
        return None
    if is_hub_name(str(source)) or is_shards(source, folder):
        return None
    if is_saved(path_of(str(source), folder)):
        return None
    path, kind = _file_of_rows(str(source), setting, folder)
    if kind not in _BY_LINES or (kind not in _WITH_HEADER and path.stat().st_size > _BEGINNING_BYTES):
        return None
    return _table_of_file(str(source), path, kind, setting, _BEGINNING_BYTES)


def _read_file(source: str, setting: str, folder: Path | None) -> Table:
    path, kind = _file_of_rows(source, setting, folder)
    return _table_of_file(source, path, kind, setting)


def _file_of_rows(source: str, setting: str, folder: Path | None) -> tuple[Path, str]:
    """Return the file and its kind."""
    path = find_file(source, setting, folder)
    kind = path.suffix.lower()
    if kind in _SPREADSHEETS:
        raise DataError(setting, f"{short_path(source)} is a spreadsheet", "Save it as CSV.")
    if kind in _WEIGHTS:
        raise DataError(
            setting,
            f"{short_path(source)} holds weights or tensors, and rows are expected",
            "Name a file of rows, such as a CSV, or a function that returns them as package.module:function.",
        )
    if kind in _DECOMPRESS:
        raise DataError(
            setting,
            f"{short_path(source)} is compressed, and rows are read where they stand in a file",
            f"Decompress it: {_DECOMPRESS[kind]} {shlex.quote(short_path(source))}",
        )
    if kind not in READERS:
        raise DataError(
            setting,
            f"{short_path(source)} is of no known kind",
            f"Give a file named {', '.join(READERS)}, shards named .tar, a data set of Hugging Face as hf://OWNER/NAME, or a Python function as package.module:function.",
        )
    return path, kind


def _table_of_file(source: str, path: Path, kind: str, setting: str, most_bytes: int | None = None) -> Table:
    """Return the rows of a file, or those of whole lines among its first `most_bytes`."""
    try:
        if most_bytes is None and is_larger(path, kind, LARGE_FILE):
            columns, in_file, numbers, faults, digest = read_large(path, kind, source, setting)
            _check_some(columns, in_file, faults, source, setting, kind)
            return Table(source, columns, in_file, numbers, digest, tuple(faults))
        with path.open("rb") as file:
            content = file.read(-1 if most_bytes is None else most_bytes)
            if most_bytes is not None and file.read(1):
                content = content[: content.rfind(b"\n") + 1]
    except OSError as error:
        raise DataError(
            setting,
            f"{short_path(source)} cannot be read: {error.strerror or error}",
            "Name a file that can be read.",
        ) from error
    if not content.strip():
        raise DataError(setting, f"{short_path(source)} is empty", "Name a file with rows.")
    columns, rows, lines, faults = READERS[kind](content, source, setting)
    _check_some(columns, rows, faults, source, setting, kind)
    return Table(source, columns, rows, lines, hashlib.sha256(content).hexdigest(), tuple(faults))


def _check_some(
    columns: Sequence[str], rows: Sequence[Any], faults: Sequence[Fault], source: str, setting: str, kind: str
) -> None:
    """See that a file has rows.

    Raises:
        DataError: it has none.
    """
    if not rows and not faults:
        words = "has a header and no rows" if columns and kind in _WITH_HEADER else "is empty"
        raise DataError(setting, f"{short_path(source)} {words}", "Name a file with rows.")


def _table_of_shards(source: str, setting: str, folder: Path | None) -> Table:
    gathered = GatheredRows(LARGE_FILE)
    shards = read_shards(source, setting, folder, gathered)
    return Table(
        source,
        shards.columns,
        shards.rows,
        gathered.numbers,
        shards.sha256,
        shards.faults,
        names=shards.names,
        base=shards.base,
    )


def _rows_of_function(
    function: Callable[[], Iterable[Mapping[str, Any]]], name: str, setting: str, folder: Path | None
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that a function gives.

    Raises:
        DataError: it failed, gives a stream, or a row that has no columns.
    """
    try:
        with import_path(folder):
            made = function()
            from snugfit.data.stream import Stream  # it loads torch, which other sources do without

            if isinstance(made, Stream):
                raise DataError(
                    setting,
                    f"{name} returned a stream, and all rows are read here before the run begins",
                    "Give data.stream, the rows that are read at a time, where the task has it; or return an iterable of rows.",
                )
            frame = frame_rows(made)
            if (
                made is not None
                and frame is None
                and not (isinstance(made, Iterable) or hasattr(made, "__getitem__"))
            ):
                raise DataError(
                    setting,
                    f"{name} gave a {type(made).__name__}, which has no rows",
                    "Return an iterable of dicts, or a data frame of pandas; a model of one's own is named by model, beside task: python.",
                )
            for number, row in enumerate(made if frame is None else frame, 1):
                if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
                    raise DataError(
                        setting,
                        f"row {number} of {name} is a {type(row).__name__}, not a dict of columns by name",
                        "Return dicts, or a data frame of pandas.",
                    )
                yield row
    except DataError:
        raise
    except Exception as failure:
        raise DataError(setting, f"{name} failed: {describe(failure)}", "Correct the function.") from failure


def _text_in_json(value: Any) -> str:
    from snugfit.system.digest import text_in_json  # NumPy, which rows of plain values do without

    return text_in_json(value)


def _table_of(given: Iterable[Mapping[str, Any]], name: str, setting: str) -> Table:
    """Return rows that are no lines of a file, which are counted instead."""
    columns: dict[str, None] = {}
    gathered = GatheredRows(LARGE_FILE)
    digest = hashlib.sha256()
    for row in given:
        columns.update(dict.fromkeys(row))
        text = json.dumps(dict(row), sort_keys=True, default=_text_in_json)
        line = text.encode("utf-8", "surrogatepass") + b"\n"
        digest.update(line)
        gathered.add(row, len(line))
    if not gathered.rows:
        raise DataError(setting, f"{name} gave no rows", "Give at least one row.")
    return Table(name, tuple(columns), gathered.rows, gathered.numbers, digest.hexdigest())


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
                f"{_nearest_column(column, part.columns)}Its columns are {shown}{' and more' if len(part.columns) > 20 else ''}.{other}{hint and f' {hint}'}",
            )


def _nearest_column(column: str, columns: Sequence[str]) -> str:
    guess = nearest(column, columns)
    return f"{guess} " if guess.startswith("Did you mean") else ""
