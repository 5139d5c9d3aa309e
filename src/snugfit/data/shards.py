"""Shards: tar files of examples, as WebDataset names their members, read where they lie.

Members of one shard whose names are alike up to the first dot are one example: `0001.jpg` and `0001.cls`. An index of the members, from
the headers alone, tells where each lies; so any example can be read at any time, and order, resume, ranks and workers are as exact as with
files. A member has a path: that of its shard, and behind it its name (`train-000.tar/0001.jpg`).
"""

from __future__ import annotations

import functools
import glob
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from snugfit.data.bad_rows import NOT_UTF8, BadRow, Fault, shorten
from snugfit.data.file_formats import TEXT_COLUMN
from snugfit.data.file_kinds import PICTURE_SUFFIXES, SOUND_SUFFIXES
from snugfit.errors import DataError
from snugfit.system.json_text import parse_json

SUFFIX = ".tar"
_PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
KEY_COLUMN = "__key__"
"""The column of an example's name in its shard."""
_COLUMNS = {"txt": TEXT_COLUMN, "text": TEXT_COLUMN, "cls": "label"}
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_WILD_CARDS = re.compile(r"[*?]|\[[^\]]*\]")
_PATTERN = re.compile(rf"{_RANGE.pattern}|{_WILD_CARDS.pattern}")
_NAME = re.compile(r"((?:.*/)?[^/.][^/.]*)\.([^/]+)")


@dataclass(frozen=True)
class Shards:
    """Tar files, by their paths below a folder; the paths of their members begin there too."""

    source: str
    folder: str
    names: tuple[str, ...]


def find_shards(source: str | Path, setting: str, folder: Path | None = None) -> Shards | None:
    """Return the shards that a source names: one, a range (`train-{000..131}.tar`), a pattern (`train-*.tar`), or a folder that holds some.

    Returns:
        None where it names something else.
    Raises:
        DataError: it names shards that are not there, or compressed ones.
    """
    text = os.fspath(source)
    place = os.path.join(folder or Path.cwd(), os.path.expanduser(text))
    if text.lower().endswith(_PACKED):
        raise DataError(
            setting,
            f"{text} is compressed as a whole, so that no member can be read without those before it",
            f"Uncompress it: {SUFFIX} files are read where they lie.",
        )
    if os.path.isfile(place) and _is_shard(os.path.basename(place)):
        base, wanted = os.path.dirname(place), [place]
    elif text.lower().endswith(SUFFIX):
        base, wanted = os.path.dirname(_PATTERN.split(place, maxsplit=1)[0]), _expanded(place)
    elif os.path.isdir(place):
        base = place
        wanted = sorted(os.path.join(place, name) for name in os.listdir(place) if _is_shard(name))
        if not wanted:
            return None
    else:
        return None
    missing = [path for path in wanted if not os.path.isfile(path)]
    if missing or not wanted:
        what = missing[0] if missing else place
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            setting, f"there is no file {what}{more}", "Correct the name, or the range of numbers."
        )
    return Shards(text, base, tuple(os.path.relpath(path, base) for path in wanted))


def without_pattern(name: str) -> str:
    """Return a name without its ranges of numbers and wild cards.

    >>> without_pattern("train-{000..131}"), without_pattern("*")
    ('train-', '')
    """
    return _WILD_CARDS.sub("", _RANGE.sub("", name))


def read_shards(
    shards: Shards, setting: str
) -> tuple[tuple[str, ...], list[dict[str, Any]], list[Fault], str]:
    """Return columns, a row of each example, the faults of those that cannot be read, and a digest of all that was looked at.

    A picture, a sound and what is of no known kind has its path, below the folder of the shards, in the column of its name behind the first
    dot; `image` and `audio` where that is a suffix alone. Texts are read: `.txt` as `text`, `.cls` as `label`, and a `.json` has columns of
    its own.

    Raises:
        DataError: a shard cannot be read, or there is no example in any.
    """
    columns: dict[str, None] = {KEY_COLUMN: None}
    rows: list[dict[str, Any]] = []
    faults: list[Fault] = []
    digest = hashlib.sha256()
    for name in shards.names:
        path = os.path.join(shards.folder, name)
        members = _members(path, setting)
        with open(path, "rb") as file:
            for key, extensions in _examples(members):
                try:
                    row = _row(file, name, key, extensions, members, digest)
                except BadRow as bad:
                    faults.append(bad.at(f"{name}/{key}", 0))
                    continue
                columns.update(dict.fromkeys(row))
                rows.append(row)
    if not rows and not faults:
        raise DataError(
            setting,
            f"{shards.source} holds no example: no member is named KEY.SUFFIX",
            "Name members so, alike up to the first dot for one example.",
        )
    return tuple(columns), [{**dict.fromkeys(columns), **row} for row in rows], faults, digest.hexdigest()


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes, or a member of a shard by its path.

    Raises:
        OSError: there is none.
    """
    try:
        return open(path, "rb")
    except (NotADirectoryError, FileNotFoundError):  # the second on Windows
        shard, name = _split(os.fspath(path))
        member = None if shard is None else _members(shard, "data").get(name)
        if shard is None or member is None:
            raise
    return io.BufferedReader(_Member(shard, *member))


def is_member(path: str | Path) -> bool:
    """Return whether a path is that of a member of a shard."""
    return not os.path.exists(path) and _split(os.fspath(path))[0] is not None


class _Member(io.RawIOBase):
    """The bytes of one member, as a file of its own."""

    def __init__(self, shard: str, start: int, size: int) -> None:
        super().__init__()
        self._file = open(shard, "rb", buffering=0)  # noqa: SIM115 (closed with this file)
        self._start, self._size, self._place = start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._place))
        self._file.seek(self._start + self._place)
        content = self._file.read(count)
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_shard(name: str) -> bool:
    return name.lower().endswith(SUFFIX) and not name.startswith(".")


def _expanded(path: str) -> list[str]:
    """Return the paths that a range of numbers or a pattern names, in order.

    >>> _expanded("a/train-{08..10}.tar")
    ['a/train-08.tar', 'a/train-09.tar', 'a/train-10.tar']
    """
    match = _RANGE.search(path)
    if match:
        first, last = match[1], match[2]
        numbers = (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))
        return [each for number in numbers for each in _expanded(path.replace(match[0], number, 1))]
    return sorted(glob.glob(path)) if _WILD_CARDS.search(path) else [path]


def _split(path: str) -> tuple[str | None, str]:
    """Return the shard that a path leads into, None where it leads into none, and the name of the member."""
    parts = path.split(os.sep)
    for place, part in enumerate(parts[:-1], 1):
        if _is_shard(part) and os.path.isfile(shard := os.sep.join(parts[:place])):
            return shard, "/".join(parts[place:])
    return None, ""


def _members(path: str, setting: str) -> Mapping[str, tuple[int, int]]:
    """Return where each member of a shard begins, and its size, by its name.

    Raises:
        DataError: it cannot be read to its end.
    """
    about = os.stat(path)
    return _indexed(path, setting, about.st_size, about.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _indexed(path: str, setting: str, size: int, _modified: int) -> Mapping[str, tuple[int, int]]:
    members: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(path, "r:") as shard:
            while (member := shard.next()) is not None:
                shard.members.clear()  # type: ignore[attr-defined] # else all are kept
                if not member.isreg():
                    continue
                if member.name in members:
                    raise DataError(
                        setting,
                        f"{path} has two members named {member.name}",
                        "Write it anew, each with a name of its own.",
                    )
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError(f"{member.name} goes beyond its end")
                members[member.name] = member.offset_data, member.size
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            setting,
            f"{path} is no tar file that can be read to its end: {shorten(error, 100)}",
            "Copy it again, or leave it out of the names.",
        ) from error
    return members


def _examples(members: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the keys of a shard's examples in order, each with what its members' names have behind the first dot."""
    examples: dict[str, list[str]] = {}
    for name in members:
        match = _NAME.fullmatch(name)
        if match and not match[1].rpartition("/")[2].startswith("."):
            examples.setdefault(match[1], []).append(match[2])
    yield from examples.items()


def _row(
    file: BinaryIO,
    shard: str,
    key: str,
    extensions: Sequence[str],
    members: Mapping[str, tuple[int, int]],
    digest: Any,
) -> dict[str, Any]:
    """Return the row of one example; what is read goes into the digest.

    Raises:
        BadRow: a text or a JSON of it cannot be read, or two members would have one column.
    """
    row: dict[str, Any] = {KEY_COLUMN: key}
    for extension in extensions:
        name = f"{key}.{extension}"
        start, size = members[name]
        digest.update(f"{shard}/{name} {size}\n".encode())
        prefix, _, kind = extension.lower().rpartition(".")
        if kind == "json" or kind in _COLUMNS:
            file.seek(start)
            content = file.read(size)
            digest.update(content)
            values = _values(content, extension, prefix, kind)
        else:
            values = {_column(prefix, kind): os.path.join(shard, *name.split("/"))}
        twice = next((column for column in values if column in row), None)
        if twice is not None:
            raise BadRow("two values of a column", f"two of its members give '{twice}'")
        row.update(values)
    return row


def _column(prefix: str, kind: str) -> str:
    """Return the column of a file.

    >>> _column("", "jpg"), _column("left", "jpg"), _column("", "wav"), _column("", "npy")
    ('image', 'left', 'audio', 'npy')
    """
    if prefix:
        return prefix
    suffix = f".{kind}"
    return "image" if suffix in PICTURE_SUFFIXES else "audio" if suffix in SOUND_SUFFIXES else kind


def _values(content: bytes, extension: str, prefix: str, kind: str) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRow(
            NOT_UTF8, f"its {extension} has byte 0x{content[error.start]:02x} at {error.start}"
        ) from error
    if kind != "json":
        return {prefix or _COLUMNS[kind]: text.strip() if kind == "cls" else text}
    try:
        value = parse_json(text)
    except ValueError as error:
        detail = error.msg if isinstance(error, json.JSONDecodeError) else shorten(error, 80)
        raise BadRow("broken JSON", f"its {extension} is broken JSON: {detail}") from error
    if prefix:
        return {prefix: value}
    if not isinstance(value, dict):
        raise BadRow(
            "broken JSON", f"its {extension} is a {type(value).__name__} instead of an object with columns"
        )
    return value
