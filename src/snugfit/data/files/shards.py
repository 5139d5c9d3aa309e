"""Shards: tar files in WebDataset's form, whose members are grouped to rows by their names."""

from __future__ import annotations

import codecs
import hashlib
import itertools
import os
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import NOT_UTF8, BadRow, Fault, shorten
from snugfit.data.files.file_kinds import COMPRESSED, PICTURE_SUFFIXES, SOUND_SUFFIXES, path_of
from snugfit.data.files.tar_members import (
    TAR,
    Member,
    content_of,
    read_member,
    reason_of,
    split_member,
    tar_index,
)
from snugfit.data.lazy.spooled_rows import GatheredRows
from snugfit.errors import DataError, nearest_file
from snugfit.system.json_text import parse_json

_KEY = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)")
"""The key of a member is its path up to the first dot of its last part, and its field what stands behind. Hidden files have none."""

_BRACES = re.compile(r"\{([^{}]*)\}")
_NUMBERED = re.compile(r"(.*?)([-_.]?)\d+(?:[-_.]of[-_.]\d+)?")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_MOST_SHARDS = 100_000

Content = Callable[[], bytes]


@dataclass(frozen=True)
class ShardRows:
    """The rows of shards.

    Args:
        base: the folder that paths in rows are relative to.
        rows: columns of each; a picture or a sound is its path, which leads into its shard.
        names: of each row, its shard and key.
    """

    base: str
    columns: tuple[str, ...]
    rows: Sequence[dict[str, Any]]
    names: list[str]
    sha256: str
    faults: tuple[Fault, ...] = field(default=())


def shard_files(source: str, setting: str, folder: Path | None = None) -> list[Path]:
    """Return the tar files that a source names, in order: by braces, by * and ?, or by their folder.

    Raises:
        DataError: one is not there, is compressed, or the pattern cannot be read.
    """
    if source.lower().endswith(COMPRESSED):
        raise DataError(
            setting,
            f"{source} is compressed, so none of its members can be read without those before it",
            "Unpack the outer layer alone: gunzip, or its kin, leaves a .tar.",
        )
    path = path_of(source, folder)
    if path.is_file():  # also one whose name has brackets or braces
        return [path]
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.suffix.lower() == TAR and entry.is_file())
    files = []
    for name in itertools.islice(expanded(source), _MOST_SHARDS + 1):
        each = path_of(name, folder)
        if re.search(r"[*?\[]", name):
            there = sorted(each.parent.glob(each.name))
        else:
            there = [each] if each.is_file() else []
        if not there:
            near = [entry.name for entry in each.parent.iterdir()] if each.parent.is_dir() else []
            raise DataError(
                setting,
                f"there is no shard {name} (looked for {each.absolute()})",
                nearest_file(each.name, near) or "Correct the path.",
            )
        files += there
    if len(files) > _MOST_SHARDS:
        raise DataError(setting, f"{source} names more than {_MOST_SHARDS:,} shards", "Correct the braces.")
    return files


def shard_patterns(folder: Path) -> dict[str, Path]:
    """Return the shards of a folder by their names without numbers, each as the pattern of those that have it.

    A folder with train-0.tar, train-1.tar and val.tar has {"train": train-[0-9]*.tar, "val": val.tar}.
    """
    patterns = {}
    for file in shard_files(str(folder), "data"):
        numbered = _NUMBERED.fullmatch(file.stem)
        name = file.stem if numbered is None else numbered[1]
        patterns[name] = file if numbered is None else folder / f"{name}{numbered[2]}[0-9]*{TAR}"
    return patterns


def any_of(patterns: Sequence[Path]) -> Path:
    """Return the pattern of the shards of all these, which lie in one folder.

    >>> any_of([Path("shards/a.tar")]).name, any_of([Path("shards/a.tar"), Path("shards/b-*.tar")]).name
    ('a.tar', '{a,b-*}.tar')
    """
    names = ",".join(pattern.stem for pattern in patterns)
    return patterns[0] if len(patterns) == 1 else patterns[0].with_name(f"{{{names}}}{TAR}")


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern with braces stands for, as a shell does.

    >>> list(expanded("s-{08..11}.tar")), list(expanded("{a,b}.tar"))
    (['s-08.tar', 's-09.tar', 's-10.tar', 's-11.tar'], ['a.tar', 'b.tar'])
    """
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    choices: Iterable[str] = match[1].split(",")
    if numbers := _RANGE.fullmatch(match[1]):
        first, last = numbers.groups()
        step = 1 if int(last) >= int(first) else -1
        width = max(len(first), len(last)) if "0" in (first[0], last[0]) else 0
        choices = (f"{number:0{width}d}" for number in range(int(first), int(last) + step, step))
    for choice in choices:
        yield from expanded(f"{pattern[: match.start()]}{choice}{pattern[match.end() :]}")


def read_shards(
    source: str, setting: str, folder: Path | None = None, gathered: GatheredRows | None = None
) -> ShardRows:
    """Return the rows of shards, in the order of their members.

    Texts, classes and JSON are read now; pictures, sounds and whatever else is no text are paths, which `opened_file` opens.

    Args:
        gathered: takes the rows; None: they are held.
    Raises:
        DataError: a shard is not there, cannot be read or is no tar file, or all are empty.
    """
    files = shard_files(source, setting, folder)
    base = os.path.commonpath([os.path.abspath(file.parent) for file in files])
    gathered = GatheredRows(sys.maxsize) if gathered is None else gathered
    names: list[str] = []
    faults: list[Fault] = []
    columns: dict[str, None] = {}
    digest, size = hashlib.sha256(), 0

    def seen(content: bytes) -> None:
        nonlocal size
        digest.update(content)
        size += len(content)

    for file in files:
        for name, row in rows_of_shard(file, base, setting, seen):
            if isinstance(row, Fault):
                faults.append(row)
            else:
                columns.update(dict.fromkeys(row))
                gathered.add(row, size)
                names.append(name)
            size = 0
    if not names and not faults:
        raise DataError(
            setting,
            f"{source} holds no rows",
            "Members of a row have one name up to the first dot, such as 0001.jpg and 0001.cls.",
        )
    return ShardRows(base, tuple(columns), gathered.rows, names, digest.hexdigest(), tuple(faults))


def rows_of_shard(
    file: Path, base: str, setting: str, seen: Callable[[bytes], object], begin: int = 0
) -> Iterator[tuple[str, dict[str, Any] | Fault]]:
    """Yield the name of each row of a shard, and its columns, or what is wrong with it; behind the last one, what is wrong with the shard.

    Args:
        base: the folder that names and paths in rows are relative to.
        seen: takes what rows are known by.
        begin: the first that is yielded, counted from 0.
    Raises:
        DataError: the shard cannot be read as a tar file.
    """
    shard = os.path.relpath(file, base)
    problem = _problem(file, setting)
    twice = _named_twice(str(file))
    behind = [] if problem is None else [Fault(shard, 0, "truncated shard", f"the shard {problem}")]
    rows: Iterator[tuple[str, list[tuple[str, Member, Content]]] | Fault]
    rows = itertools.chain(_groups(str(file)), behind)
    for each in itertools.islice(rows, begin, None):
        if isinstance(each, Fault):
            yield shard, each
            continue
        key, fields = each
        name = _inside(shard, key)
        try:
            row = _row(shard, fields, seen)
            _check_names(fields, twice)
            yield name, row
        except BadRow as bad:
            yield name, bad.at(name, 0)


def plain_file(path: str, place: Path) -> str:
    """Return a file that any library can open: the path itself, or `place`, where what a member of a shard holds is written.

    Raises:
        OSError: there is no such member, or no room for it.
    """
    inside = split_member(path)
    if inside is None:
        return path
    place.write_bytes(read_member(*inside))
    return str(place)


def _problem(file: Path, setting: str) -> str | None:
    try:
        return tar_index(str(file)).problem
    except (OSError, tarfile.TarError) as error:
        raise DataError(
            setting, f"{file} cannot be read as a tar file: {reason_of(error)}", "Copy or write it again."
        ) from error


def _named_twice(file: str) -> set[str]:
    """Return the names that several members have: which of them a path leads to cannot be said."""
    return {
        name
        for name, count in Counter(member.name for member in tar_index(file).members).items()
        if count > 1
    }


def _check_names(fields: list[tuple[str, Member, Content]], twice: set[str]) -> None:
    """See that each member that a path leads to is the only one of its name.

    Raises:
        BadRow: another row has a member of that name.
    """
    for field_name, member, _ in fields:
        if field_name not in _DECODERS and member.name in twice:
            raise BadRow(
                "name used twice",
                f"the shard has {member.name} more than once, so that its rows cannot be told apart",
            )


def _inside(shard: str, name: str) -> str:
    """Return the path of a member, also of one whose name begins as that of a file elsewhere does."""
    return f"{shard}{os.sep}{name}"


def _groups(file: str) -> Iterator[tuple[str, list[tuple[str, Member, Content]]]]:
    """Yield the key of each row of a shard, and its fields: members of one key that follow one another."""
    with open(file, "rb") as opened:
        fields = [
            (match[1], (match[2].lower(), member, partial(content_of, opened, member)))
            for member in tar_index(file).members
            if (match := _KEY.fullmatch(member.name)) is not None
        ]
        for key, group in itertools.groupby(fields, key=lambda each: each[0]):
            yield key, [each for _, each in group]


def _row(
    shard: str, fields: list[tuple[str, Member, Content]], seen: Callable[[bytes], object]
) -> dict[str, Any]:
    """Return the columns of a row.

    Args:
        seen: takes what the row is known by.
    Raises:
        BadRow: a member cannot be decoded, or two give one column.
    """
    row: dict[str, Any] = {}
    problem: BadRow | None = None
    for name, member, content in fields:
        seen(f"{member.name}\0{member.size}\0".encode("utf-8", "surrogateescape"))
        path = _inside(shard, member.name)
        try:
            for column, value in _columns(name, path, content, seen).items():
                if column in row:
                    raise BadRow("two values", f"{member.name} gives column '{column}', which it has already")
                row[column] = value
        except BadRow as bad:
            problem = problem or bad  # the rest is looked at, as it belongs to what the shard is known by
    if problem is not None:
        raise problem
    return row


def _columns(name: str, path: str, content: Content, seen: Callable[[bytes], object]) -> Mapping[str, Any]:
    """Return the columns that a member gives its row, by the field behind its key."""
    kind = f".{name}"
    if kind in PICTURE_SUFFIXES:
        return {"image": path}
    if kind in SOUND_SUFFIXES:
        return {"audio": path}
    if name not in _DECODERS:
        return {name: path}
    data = content()
    seen(data)
    column, decode = _DECODERS[name]
    try:
        value = decode(data.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRow(NOT_UTF8, f"byte 0x{error.object[error.start]:02x} of {path} is not UTF-8") from error
    except ValueError as error:
        raise BadRow(f"broken {name}", f"{path} cannot be read: {shorten(error, 80)}") from error
    if name == "json" and isinstance(value, Mapping):
        return value
    return {column: value}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"'{shorten(text)}' is no whole number") from None


def _class(text: str) -> int | str:
    """Return the number of a class, or its name."""
    try:
        return int(text)
    except ValueError:
        return text.strip()


_DECODERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "txt": ("text", str),
    "text": ("text", str),
    "transcript": ("transcript", str),
    "cls": ("label", _class),
    "cls2": ("cls2", _class),
    "index": ("index", _number),
    "json": ("json", parse_json),
}
"""Fields that WebDataset decodes to text, whole numbers or JSON: the column that each is, and its decoder.

WebDataset itself takes numbers of classes alone."""
