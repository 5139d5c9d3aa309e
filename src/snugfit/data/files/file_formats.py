"""The content of a CSV, TSV, JSON, Parquet or .txt file to rows, with every faulty row told apart."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from snugfit.data.bad_rows import NOT_UTF8, BadRow, Fault, as_utf8, shorten
from snugfit.data.files.file_lines import Lines, lines_in_memory
from snugfit.errors import DataError, MissingExtra
from snugfit.system.json_text import parse_json
from snugfit.units import counted

TEXT_COLUMN = "text"
"""The one column of a plain text: its lines, with their line breaks."""


def is_plain_text(source: object) -> bool:
    """Return whether a source is a .txt file, all of which is one text.

    >>> is_plain_text("book.TXT"), is_plain_text("rows.jsonl")
    (True, False)
    """
    return str(source).lower().endswith(".txt")


_Rows = tuple[tuple[str, ...], list[dict[str, Any]], list[int], list[Fault]]
"""Columns, rows, the line on which each begins, and the faults of rows that cannot be read."""

_UNREADABLE = re.compile("[\0\udc80-\udcff]")

_LONGEST_FIELD = 1 << 26
"""Characters of a field: one that is longer has a quote that is never closed."""

_PARQUET_ROWS = 256
"""Rows of a Parquet file that are decoded at a time."""

_PARQUET_BUFFER = 1 << 20
"""Bytes of each of its columns that are read at once; all of a group by default."""

_MAGIC = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"\x1f\x8b": "gzip-compressed",
    b"PAR1": "a Parquet file",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook",
    b"%PDF": "a PDF",
    b"SQLite format 3": "an SQLite database",
    b"\x80\x04\x95": "a pickle",
    b"\x89PNG": "a PNG image",
}


def decode(content: bytes, source: str, setting: str) -> str:
    """Return the text of a file. Bytes that are not UTF-8 become lone surrogates, so that only their rows are lost.

    Raises:
        DataError: the file is not text, or text in UTF-16.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            setting,
            f"{source} is UTF-16",
            as_utf8(source, "utf-16"),
        )
    for magic, name in _MAGIC.items():
        if content.startswith(magic):
            raise DataError(setting, f"{source} is {name}, not text", "Export it as CSV or JSONL.")
    try:
        text = content.decode("utf-8-sig")
        doubtful = "\0" in text
    except UnicodeDecodeError:
        text = content.decode("utf-8-sig", "surrogateescape")
        doubtful = True
    head = content[:8192]
    controls = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\r\f\v\x1a\x1b")
    if doubtful and controls > len(head) / 20:
        raise DataError(setting, f"{source} is binary, not text", "Export it as CSV or JSONL.")
    return text


def _read_delimited(text: str, source: str, setting: str, delimiter: str) -> _Rows:
    columns, read = delimited(lines_in_memory(text), source, setting, delimiter)
    return (columns, *_apart(read))


def _apart(
    read: Iterable[tuple[int, dict[str, Any] | Fault]],
) -> tuple[list[dict[str, Any]], list[int], list[Fault]]:
    """Return rows, their lines, and the faults of those that cannot be read."""
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    for number, row in read:
        if isinstance(row, Fault):
            faults.append(row)
            continue
        rows.append(row)
        numbers.append(number)
    return rows, numbers, faults


def delimited(
    lines: Lines, source: str, setting: str, delimiter: str
) -> tuple[tuple[str, ...], Iterator[tuple[int, dict[str, Any] | Fault]]]:
    """Return the columns of a delimited text, none of an empty one, and the line of each row with it, or with what is wrong with it.

    Raises:
        DataError: the header cannot be read.
    """
    columns, begin = header(lines, source, setting, delimiter)
    return columns, below_header(columns, lines, source, delimiter, begin)


def header(lines: Lines, source: str, setting: str, delimiter: str) -> tuple[tuple[str, ...], int]:
    """Return the columns of a delimited text, none of an empty one, and the line behind them, counted from 0.

    Raises:
        DataError: the header cannot be read.
    """
    end = 0
    for first, end, fields in _records(lines, delimiter, 0):
        if isinstance(fields, BadRow):
            raise DataError(
                setting,
                f"{source}:{first + 1}: the header cannot be read: {fields.detail}",
                as_utf8(source) if fields.reason == NOT_UTF8 else "Correct the first line of the file.",
            ) from fields
        if fields:
            return _distinct(fields, source, setting), end
    return (), end


def below_header(
    columns: tuple[str, ...],
    lines: Lines,
    source: str,
    delimiter: str,
    begin: int,
    passed: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the line of each row with it, or with what is wrong with it.

    Args:
        begin: the line, counted from 0, that they begin at.
        passed: is told the line behind each row.
    """
    for first, end, fields in _records(lines, delimiter, begin):
        passed(end)
        if isinstance(fields, BadRow):
            yield first + 1, fields.at(source, first + 1)
        elif len(fields) == len(columns):
            yield first + 1, dict(zip(columns, fields, strict=True))
        elif fields:
            bad = BadRow("ragged row", f"{counted(len(fields), 'field')}, the header has {len(columns)}")
            yield first + 1, bad.at(source, first + 1)


def _records(lines: Lines, delimiter: str, start: int) -> Iterator[tuple[int, int, list[str] | BadRow]]:
    """Yield each record's first line and the line behind it, counted from 0, and its fields or why they cannot be read.

    After a broken record reading begins anew on its second line, so a stray quote costs its own row only.
    """
    unreadable: dict[int, BadRow] = {}

    def checked(number: int) -> Iterator[str]:
        for line in lines(number):
            number += 1
            try:
                _check_characters(line, number)
            except BadRow as bad:
                unreadable[number - 1] = bad
            yield line

    broken = True
    while broken:
        broken, first = False, start
        reader = csv.reader(checked(start), delimiter=delimiter, strict=True)
        while True:
            fields: list[str] | BadRow
            try:
                fields, end = _next(reader), start + reader.line_num
            except StopIteration:
                break
            except csv.Error as error:
                broken, fields, end = True, _broken_quotes(error), first + 1
            bad = [each for number in range(first, end) if (each := unreadable.pop(number, None))]
            yield first, end, bad[0] if bad else fields
            first = end
            if broken:
                start = end
                break


def _broken_quotes(error: csv.Error) -> BadRow:
    is_open = any(words in str(error) for words in ("end of data", "field limit"))
    detail = "a quote is never closed" if is_open else f"broken quotes ({error})"
    return BadRow("broken quotes", f'{detail}; inside a quoted field write "" for a quote')


def _next(reader: Iterator[list[str]]) -> list[str]:
    limit = csv.field_size_limit(_LONGEST_FIELD)  # of the whole process
    try:
        return next(reader)
    finally:
        csv.field_size_limit(limit)


def _distinct(columns: Sequence[str], source: str, setting: str) -> tuple[str, ...]:
    """Return the columns of a table, each of which is named once.

    Raises:
        DataError: one is named more often.
    """
    repeated = sorted({name for name in columns if columns.count(name) > 1})
    if repeated:
        raise DataError(
            setting,
            f"{source} has the column '{shorten(repeated[0])}' more than once",
            "Give every column its own name.",
        )
    return tuple(columns)


def _check_characters(line: str, number: int) -> None:
    """See that a line holds no NUL and nothing that was not UTF-8.

    Raises:
        BadRow: it does.
    """
    match = _UNREADABLE.search(line)
    if match is None:
        return
    if match[0] == "\0":
        raise BadRow("NUL byte", f"a NUL byte on line {number}")
    byte = ord(match[0]) - 0xDC00
    raise BadRow(
        NOT_UTF8,
        f"byte 0x{byte:02x} on line {number} is not UTF-8 (in Latin-1 it would be '{chr(byte)}')",
    )


def _read_json_lines(text: str, source: str, setting: str) -> _Rows:
    rows, numbers, faults = _apart(json_lines(text.split("\n"), source))
    check_no_list(text, faults, source, setting)
    return tuple(dict.fromkeys(column for row in rows for column in row)), rows, numbers, faults


def check_no_list(beginning: str, faults: Iterable[Fault], source: str, setting: str) -> None:
    """See that a file of JSON Lines is not one JSON list.

    Raises:
        DataError: it is.
    """
    if beginning.lstrip().startswith("[") and any(fault.reason == "broken JSON" for fault in faults):
        raise DataError(
            setting,
            f"{source} is one JSON list",
            "Name it .json, or write one object a line (JSON Lines).",
        )


def json_lines(
    lines: Iterable[str], source: str, before: int = 0
) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the number of each line that is not empty, `before` of which are before these, and its object, or what is wrong with it."""
    for number, line in enumerate(lines, before + 1):
        if not line.strip():
            continue
        try:
            _check_characters(line, number)
            yield number, _json_object(line.removesuffix("\n"))
        except BadRow as bad:
            yield number, bad.at(source, number)


def text_lines(
    lines: Iterable[str], source: str, before: int = 0
) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the number of each line, `before` of which are before these, and its text with its line break, or what is wrong with it."""
    for number, line in enumerate(lines, before + 1):
        try:
            _check_characters(line, number)
            yield number, {TEXT_COLUMN: line}
        except BadRow as bad:
            yield number, bad.at(source, number)


def _read_json(text: str, source: str, setting: str) -> _Rows:
    """Read one JSON list of objects, which are counted in place of lines, or JSON Lines, as files of that name often are."""
    if not text.lstrip().startswith("["):
        return _read_json_lines(text, source, setting)
    try:
        values = parse_json(text)
    except ValueError as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else None
        raise broken_list(source, setting, error, line) from error
    rows, numbers, faults = _apart(counted_entries(values, source))
    return tuple(dict.fromkeys(column for row in rows for column in row)), rows, numbers, faults


def counted_entries(
    values: Iterable[Any], source: str, before: int = 0
) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the number of each entry of a JSON list, `before` of which are before these, with the entry, or with what is wrong with it."""
    for number, value in enumerate(values, before + 1):
        if isinstance(value, dict):
            yield number, value
        else:
            detail = f"entry {number} is a {type(value).__name__} instead of an object with columns"
            yield number, Fault(source, number, "broken JSON", detail)


def broken_list(source: str, setting: str, problem: object, line: int | None) -> DataError:
    """Return the error of a file that begins as a JSON list and is none."""
    where = "" if line is None else f" on line {line}"
    return DataError(
        setting,
        f"{source} is a JSON list that cannot be read{where}: {shorten(problem, 80)}",
        "Correct it, or write one object a line (JSON Lines), of which only the faulty ones are lost.",
    )


def _read_parquet(content: bytes, source: str, setting: str) -> _Rows:
    columns, read = parquet_rows(io.BytesIO(content), source, setting)
    rows = list(read)
    return columns, rows, list(range(1, len(rows) + 1)), []


def parquet_rows(
    file: Path | BinaryIO, source: str, setting: str, begin: int = 0
) -> tuple[tuple[str, ...], Iterator[dict[str, Any]]]:
    """Return the columns of a Parquet file, and its rows from number `begin` on, of which few are in memory at a time.

    Raises:
        DataError: it cannot be read, or has two columns of one name.
        MissingExtra: pyarrow is not installed.
    """
    with _reading_parquet(source, setting) as opened:
        table = opened(file, buffer_size=_PARQUET_BUFFER)
        columns = _distinct(table.schema_arrow.names, source, setting)

    def rows() -> Iterator[dict[str, Any]]:
        with _reading_parquet(source, setting), table:
            group, left = 0, begin
            while group < table.num_row_groups and left >= (own := table.metadata.row_group(group).num_rows):
                group, left = group + 1, left - own
            groups = range(group, table.num_row_groups)
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, row_groups=groups):
                yield from batch.slice(min(left, len(batch))).to_pylist()
                left -= min(left, len(batch))

    return columns, rows()


def parquet_bytes(path: Path) -> int:
    """Return the bytes of the columns of a Parquet file before they are compressed, in which equal values may be one; 0 of one that cannot be read, which `parquet_rows` says."""
    with suppress(DataError), _reading_parquet(str(path), "data") as opened, opened(path) as table:
        groups = table.metadata.num_row_groups
        return sum(table.metadata.row_group(group).total_byte_size for group in range(groups))
    return 0


@contextmanager
def _reading_parquet(source: str, setting: str) -> Iterator[Any]:
    """Temporarily give what opens a Parquet file; whatever it raises is an error of the source."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    try:
        yield ParquetFile
    except (ArrowException, OSError) as error:
        raise DataError(
            setting,
            f"{source} is no Parquet file that can be read: {shorten(error, 100)}",
            "Write it again, or export it as CSV or JSON Lines.",
        ) from error


def _json_object(line: str) -> dict[str, Any]:
    try:
        value = parse_json(line)
    except json.JSONDecodeError as error:
        raise BadRow("broken JSON", f"broken JSON: {error.msg} at column {error.colno}") from error
    except ValueError as error:
        raise BadRow("broken JSON", f"JSON that cannot be read: {shorten(error, 80)}") from error
    if not isinstance(value, dict):
        raise BadRow("broken JSON", f"a {type(value).__name__} instead of an object with columns")
    return value


def _read_lines(text: str, source: str) -> _Rows:
    return ((TEXT_COLUMN,), *_apart(text_lines(io.StringIO(text), source)))


DELIMITERS = {".csv": ",", ".tsv": "\t"}
"""The separator of columns that a file's name promises."""


def delimiter_of(header: str, usual: str) -> str:
    r"""Return the separator of a header's columns: the usual one, else the first that it has, else the usual one.

    >>> delimiter_of("age;city", ","), delimiter_of("text", ","), delimiter_of("a,b;c", ",")
    (';', ',', ',')
    """
    return next((each for each in (usual, ",", ";", "\t", "|") if each in header), usual)


def _read_table(text: str, source: str, setting: str, usual: str) -> _Rows:
    return _read_delimited(text, source, setting, delimiter_of(text.partition("\n")[0], usual))


def _decoded(read: Callable[[str, str, str], _Rows]) -> Callable[[bytes, str, str], _Rows]:
    return lambda content, source, setting: read(decode(content, source, setting), source, setting)


READERS: Mapping[str, Callable[[bytes, str, str], _Rows]] = {
    **{suffix: _decoded(partial(_read_table, usual=usual)) for suffix, usual in DELIMITERS.items()},
    ".jsonl": _decoded(_read_json_lines),
    ".ndjson": _decoded(_read_json_lines),
    ".json": _decoded(_read_json),
    ".parquet": _read_parquet,
    ".txt": _decoded(lambda text, source, _setting: _read_lines(text, source)),
}
"""Readers of the files of each kind: (content, source, setting) to rows."""
