"""Rows of one source one after the other, of which few are in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from snugfit.data.bad_rows import Fault, kind_of
from snugfit.data.files.file_formats import READERS, TEXT_COLUMN, text_lines
from snugfit.data.files.file_kinds import is_hub_name, is_saved, is_shards, path_of
from snugfit.data.files.file_lines import open_text
from snugfit.data.files.hub_rows import opened_hub, opened_saved
from snugfit.data.files.rows_in_order import rows_in_order
from snugfit.data.files.shards import rows_of_shard, shard_files
from snugfit.data.sources import find_file, renamed_row
from snugfit.data.stream import Stream
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import is_python_path, load_object

_PIECE = 1 << 14
"""Characters of a plain text that are a row, up to the end of their line."""


class StreamedRow(NamedTuple):
    """A row, or why it cannot be used.

    Args:
        source: that it is of, or its name.
        line: its line there, or its number, from 1; 0 where it has a name.
        columns: None of a row that cannot be read.
        reason, detail: what is wrong with it.
        begins, ends: whether it begins and ends its text; of a plain text, which is one, the first row and the last.
    """

    source: str
    line: int
    columns: Mapping[str, Any] | None
    reason: str = ""
    detail: str = ""
    begins: bool = True
    ends: bool = True

    @classmethod
    def of(cls, source: str, line: int, row: Mapping[str, Any] | Fault) -> StreamedRow:
        """Return a row that was read, or its fault."""
        if isinstance(row, Fault):
            return cls(row.source, row.line, None, row.reason, row.detail)
        return cls(source, line, row)


class RowStream:
    """The rows of a source, each time it is iterated from their beginning.

    Args:
        source: a file of rows, shards, a data set of Hugging Face, or a function that returns an iterable of rows.
        setting: that names it.
        folder: where relative paths and Python modules are looked for.
        rename: the names that its columns get, by their own.
    Raises:
        DataError: it is not there, or its kind cannot be read so.
    """

    def __init__(
        self,
        source: str,
        *,
        setting: str,
        folder: Path | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        self.source, self.setting, self.folder = source, setting, folder
        self._rename = dict(rename or {})
        self.__qualname__ = source  # by which messages name the stream
        self._epoch = 0
        self._read = self._reader()

    def set_epoch(self, epoch: int) -> None:
        """Take the number of the next pass, for a data set that asks for it."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[StreamedRow]:
        return map(self._renamed, self._read()) if self._rename else self._read()

    def _renamed(self, row: StreamedRow) -> StreamedRow:
        if row.columns is None:
            return row
        columns = renamed_row(self._rename, row.columns)
        if len(columns) < len(row.columns):  # which the first rows, by which names are checked, need not show
            names = [self._rename.get(name, name) for name in row.columns]
            twice = next(name for name in names if names.count(name) > 1)
            return row._replace(
                columns=None, reason="two columns", detail=f"two of its columns would be called '{twice}'"
            )
        return row._replace(columns=columns)

    def _reader(self) -> Callable[[], Iterator[StreamedRow]]:
        """Return what yields the rows of a pass.

        Raises:
            DataError: the source is not there, or of another kind.
        """
        if is_python_path(self.source):
            return self._of_function
        if is_hub_name(self.source):
            return self._of_hub
        if is_shards(self.source, self.folder):
            shard_files(self.source, self.setting, self.folder)  # says what is wrong with their names
            return self._of_shards
        if is_saved(path_of(self.source, self.folder)):
            return self._of_saved
        kind = self._path().suffix.lower()
        if kind not in READERS:
            raise DataError(
                self.setting,
                f"{self.source} cannot be read as a stream (data.stream)",
                f"Give {', '.join(READERS)}, shards named .tar, a data set of Hugging Face or a function; or leave data.stream out.",
            )
        return self._of_text if kind == ".txt" else self._of_file

    def _path(self) -> Path:
        return find_file(self.source, self.setting, self.folder)

    def _of_file(self) -> Iterator[StreamedRow]:
        _, rows = rows_in_order(self._path(), self.source, self.setting)
        for number, row in rows:
            yield StreamedRow.of(self.source, number, row)

    def _of_text(self) -> Iterator[StreamedRow]:
        """Yield pieces of a plain text, each some lines long."""
        piece: list[str] = []
        size, first, begins = 0, 1, True
        with open_text(self._path()) as file:
            for number, row in text_lines(file, self.source):
                if isinstance(row, Fault):
                    yield StreamedRow.of(self.source, number, row)
                    continue
                if size >= _PIECE:
                    text = {TEXT_COLUMN: "".join(piece)}
                    yield StreamedRow(self.source, first, text, begins=begins, ends=False)
                    piece, size, first, begins = [], 0, number, False
                piece.append(row[TEXT_COLUMN])
                size += len(row[TEXT_COLUMN])
        if piece:
            yield StreamedRow(self.source, first, {TEXT_COLUMN: "".join(piece)}, begins=begins)

    def _of_shards(self) -> Iterator[StreamedRow]:
        files = shard_files(self.source, self.setting, self.folder)
        base = os.path.commonpath([os.path.abspath(file.parent) for file in files])
        for file in files:
            for name, row in rows_of_shard(file, base, self.setting, lambda _: None):
                yield StreamedRow.of(name, 0, row)

    def _of_hub(self) -> Iterator[StreamedRow]:
        with opened_hub(self.source, self.setting) as dataset:
            dataset.set_epoch(self._epoch)
            yield from self._numbered(dataset)

    def _of_saved(self) -> Iterator[StreamedRow]:
        path = path_of(self.source, self.folder)
        with opened_saved(path, self.source, self.setting) as dataset:
            yield from self._numbered(dataset)

    def _of_function(self) -> Iterator[StreamedRow]:
        named = load_object(self.source, setting=self.setting, folder=self.folder, error=DataError)
        given = named() if callable(named) else named
        if given is not named and isinstance(given, Iterator):  # made for this pass
            yield from self._numbered(given)
            return
        try:
            stream = given if isinstance(given, Stream) else Stream(given)
        except SettingError as error:
            raise DataError(self.setting, f"{self.source} {error.problem}", error.remedy) from error
        yield from self._numbered(stream.rows(self._epoch))

    def _numbered(self, rows: Iterable[Any]) -> Iterator[StreamedRow]:
        for number, row in enumerate(rows, 1):
            if isinstance(row, Mapping):
                yield StreamedRow(self.source, number, row)
            else:
                yield StreamedRow(
                    self.source,
                    number,
                    None,
                    "no columns",
                    f"row {number} is {kind_of(row)}, not columns by their names",
                )
