"""The content of a CSV, TSV, JSON, Parquet or .txt file to rows, with every faulty row told apart."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from snugfit.data.bad_rows import NOT_UTF8, BadRow, Fault, shorten
from snugfit.errors import DataError, MissingExtra
from snugfit.system.json_text import parse_json

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
            f"Save it as UTF-8, for example: iconv -f utf-16 -t utf-8 {source}",
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
    # newline="" keeps the line breaks inside quoted fields as they are
    lines = list(io.StringIO(text, newline=""))
    columns: tuple[str, ...] | None = None
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    for first, end, fields in _records(lines, delimiter):
        try:
            for number in range(first, end):
                _check_characters(lines[number], number + 1)
            if isinstance(fields, Exception):
                detail = (
                    "a quote is never closed" if "end of data" in str(fields) else f"broken quotes ({fields})"
                )
                raise BadRow("broken quotes", f'{detail}; inside a quoted field write "" for a quote')
            if not fields:
                continue
            if columns is not None and len(fields) != len(columns):
                raise BadRow("ragged row", f"{len(fields)} fields, the header has {len(columns)}")
        except BadRow as bad:
            if columns is None:
                raise DataError(
                    setting,
                    f"{source}:{first + 1}: the header cannot be read: {bad.detail}",
                    "Correct the first line of the file.",
                ) from bad
            faults.append(bad.at(source, first + 1))
            continue
        if columns is None:
            columns = _header(fields, source, setting)
        else:
            rows.append(dict(zip(columns, fields, strict=True)))
            numbers.append(first + 1)
    return columns or (), rows, numbers, faults


def _records(lines: list[str], delimiter: str) -> Iterator[tuple[int, int, list[str] | Exception]]:
    """Yield each record's first line, the line after it, and its fields or what is wrong with its quotes.

    After a broken record reading begins anew on its second line, so a stray quote costs its own row only.
    """
    limit = csv.field_size_limit(2**31 - 1)
    try:
        start = 0
        while start < len(lines):
            reader = csv.reader(
                (lines[i] for i in range(start, len(lines))), delimiter=delimiter, strict=True
            )
            first = base = start
            start = len(lines)
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    break
                except csv.Error as error:
                    start = first + 1
                    yield first, start, error
                    break
                yield first, base + reader.line_num, fields
                first = base + reader.line_num
    finally:
        csv.field_size_limit(limit)


def _header(fields: list[str], source: str, setting: str) -> tuple[str, ...]:
    repeated = sorted({name for name in fields if fields.count(name) > 1})
    if repeated:
        raise DataError(
            setting,
            f"the header of {source} names the column '{shorten(repeated[0])}' more than once",
            "Give every column its own name.",
        )
    return tuple(fields)


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
    columns: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    for number, row in json_lines(text.split("\n"), source):
        if isinstance(row, Fault):
            faults.append(row)
            continue
        columns.update(dict.fromkeys(row))
        rows.append(row)
        numbers.append(number)
    check_no_list(text, faults, source, setting)
    return tuple(columns), rows, numbers, faults


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


def json_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the number of each line that is not empty, and its object, or what is wrong with it."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _check_characters(line, number)
            yield number, _json_object(line.removesuffix("\n"))
        except BadRow as bad:
            yield number, bad.at(source, number)


def text_lines(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """Yield the number of each line, and its text with its line break, or what is wrong with it."""
    for number, line in enumerate(lines, 1):
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
        where = f" on line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(
            setting,
            f"{source} is a JSON list that cannot be read{where}: {shorten(error, 80)}",
            "Correct it, or write one object a line (JSON Lines), of which only the faulty ones are lost.",
        ) from error
    columns: dict[str, None] = {}
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            columns.update(dict.fromkeys(value))
            rows.append(value)
            numbers.append(number)
        else:
            detail = f"entry {number} is a {type(value).__name__} instead of an object with columns"
            faults.append(Fault(source, number, "broken JSON", detail))
    return tuple(columns), rows, numbers, faults


def _read_parquet(content: bytes, source: str, setting: str) -> _Rows:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtra("pyarrow", "parquet") from error
    try:
        table = ParquetFile(BufferReader(content)).read()
    except (ArrowException, OSError) as error:
        raise DataError(
            setting,
            f"{source} is no Parquet file that can be read: {shorten(error, 100)}",
            "Write it again, or export it as CSV or JSON Lines.",
        ) from error
    repeated = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if repeated:
        raise DataError(
            setting,
            f"{source} has the column '{shorten(repeated[0])}' more than once",
            "Give every column its own name.",
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return tuple(table.column_names), rows, list(range(1, len(rows) + 1)), []


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
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    faults: list[Fault] = []
    for number, row in text_lines(io.StringIO(text), source):
        if isinstance(row, Fault):
            faults.append(row)
            continue
        rows.append(row)
        numbers.append(number)
    return (TEXT_COLUMN,), rows, numbers, faults


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
