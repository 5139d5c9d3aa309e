"""Rows of one source one after the other, of which few are in memory at a time, from its beginning or from where a pass was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from snugfit.data.bad_rows import Fault, kind_of
from snugfit.data.files.file_formats import READERS, TEXT_COLUMN, text_lines
from snugfit.data.files.file_kinds import is_hub_name, is_saved, is_shards, path_of
from snugfit.data.files.file_lines import LinesInPlace
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
        begins, ends: whether it begins and ends its text; rows of a plain text are pieces of one.
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


Begin = Any
"""The place of a row that a pass begins at, as JSON holds it; None: the first one."""


class RowStream:
    """The rows of a source, each time it is iterated from their beginning, or from where `load_state_dict` says.

    Args:
        source: a file of rows, shards, a data set of Hugging Face, or a function that returns an iterable of rows.
        setting: that names it.
        folder: where relative paths and Python modules are looked for.
        rename: the names that its columns get, by their own.
        parting: lines, without white space around them, that part the texts of a plain one.
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
        parting: frozenset[str] = frozenset(),
    ) -> None:
        self._parting = parting
        self.source, self.setting, self.folder = source, setting, folder
        self._rename = dict(rename or {})
        self.__qualname__ = source  # by which messages name the stream
        self._epoch = 0
        self._begin: Begin = None
        self._sought = False
        self._place: Callable[[], Begin] | None = None
        self._files = ""
        self._read = self._reader()

    def set_epoch(self, epoch: int) -> None:
        """Take the number of the next pass, for a data set that asks for it."""
        self._epoch = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None}  # a copy has read nothing

    def state_dict(self) -> dict[str, Any] | None:
        """Return where the last pass that was begun is, behind the last row that it gave; None where the source does not say it."""
        place = None if self._place is None else self._place()
        return None if place is None else {"files": self._files, "place": place}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Let the next pass begin where another one was; None: at the first row.

        Raises:
            DataError: the files are no longer those that it was in.
        """
        if state is not None and state["files"] != self._state_of_files():
            raise DataError(self.setting, f"{self.source} was changed", "Read it from its beginning.")
        self._begin = None if state is None else state["place"]

    def __iter__(self) -> Iterator[StreamedRow]:
        begin, self._begin = self._begin, None
        self._place, self._files = None, self._state_of_files()
        rows = self._read(begin)
        return map(self._renamed, rows) if self._rename else rows

    def _state_of_files(self) -> str:
        """Return a digest of the sizes and times of the files that the rows are in; what is in none has an empty one."""
        if is_python_path(self.source) or is_hub_name(self.source):
            return ""
        path = path_of(self.source, self.folder)
        if is_shards(self.source, self.folder):
            files = shard_files(self.source, self.setting, self.folder)
        elif is_saved(path):
            files = sorted(each for each in path.iterdir() if each.is_file())
        else:
            files = [self._path()]
        states = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

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

    def _reader(self) -> Callable[[Begin], Iterator[StreamedRow]]:
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

    def _of_file(self, begin: Begin) -> Iterator[StreamedRow]:
        rows = rows_in_order(self._path(), self.source, self.setting, begin)
        self._place = rows.place
        for number, row in rows:
            yield StreamedRow.of(self.source, number, row)

    def _of_text(self, begin: Begin) -> Iterator[StreamedRow]:
        """Yield pieces of a plain text, each some lines long."""
        line, byte, begins = begin or (0, 0, True)
        lines = LinesInPlace(self._path(), line, byte)
        place: tuple[int, int, bool] | None = None
        self._place = lambda: place
        piece: list[str] = []
        size, first = 0, line + 1

        def row(*, ends: bool) -> Iterator[StreamedRow]:
            text = "".join(piece)
            if text and not (begins and ends and self._parting and not text.strip()):
                yield StreamedRow(self.source, first, {TEXT_COLUMN: text}, begins=begins, ends=ends)

        for number, read in text_lines(lines, self.source, line):
            if isinstance(read, Fault):
                place = None  # the lines of a piece that is begun are before it
                yield StreamedRow.of(self.source, number, read)
                continue
            text = read[TEXT_COLUMN]
            if text.strip() in self._parting:
                place = number, lines.byte, True
                yield from row(ends=True)
                piece, size, first, begins = [], 0, number + 1, True
                continue
            if size >= _PIECE:
                place = number - 1, lines.begin, False
                yield from row(ends=False)
                piece, size, first, begins = [], 0, number, False
            piece.append(text)
            size += len(text)
        place = None
        yield from row(ends=True)

    def _of_shards(self, begin: Begin) -> Iterator[StreamedRow]:
        files = shard_files(self.source, self.setting, self.folder)
        base = os.path.commonpath([os.path.abspath(file.parent) for file in files])
        first, passed = begin or (0, 0)
        shard = first
        self._place = lambda: (shard, passed)
        for shard in range(first, len(files)):
            for name, row in rows_of_shard(files[shard], base, self.setting, lambda _: None, passed):
                passed += 1
                yield StreamedRow.of(name, 0, row)
            passed = 0

    def _of_hub(self, begin: Begin) -> Iterator[StreamedRow]:
        with opened_hub(self.source, self.setting) as dataset:
            dataset.set_epoch(self._epoch)
            yield from self._of_stream(Stream(dataset), begin)

    def _of_saved(self, begin: Begin) -> Iterator[StreamedRow]:
        path = path_of(self.source, self.folder)
        with opened_saved(path, self.source, self.setting) as dataset:
            count = begin or 0
            self._place = lambda: count
            for row in self._numbered(dataset.select(range(count, len(dataset))), count):
                count = row.line
                yield row

    def _of_function(self, begin: Begin) -> Iterator[StreamedRow]:
        named = load_object(self.source, setting=self.setting, folder=self.folder, error=DataError)
        given = named() if callable(named) else named
        if given is not named and isinstance(given, Iterator):  # made for this pass
            yield from self._numbered(given)
            return
        try:
            stream = given if isinstance(given, Stream) else Stream(given)
        except SettingError as error:
            raise DataError(self.setting, f"{self.source} {error.problem}", error.remedy) from error
        yield from self._of_stream(stream, begin)

    def _of_stream(self, stream: Stream, begin: Begin) -> Iterator[StreamedRow]:
        count, state = begin or (0, None)
        if state is not None or (self._sought and stream.tells_state):
            stream.load_state(state)  # also the beginning: an object of a module is the same in every pass
            self._sought = state is not None
        rows = stream.rows(self._epoch)
        self._place = lambda: None if (now := stream.state()) is None else (count, now)
        for row in self._numbered(rows, count):
            count = row.line
            yield row

    def _numbered(self, rows: Iterable[Any], before: int = 0) -> Iterator[StreamedRow]:
        for number, row in enumerate(rows, before + 1):
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
