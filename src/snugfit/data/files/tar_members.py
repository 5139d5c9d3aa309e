"""Members of tar files by their paths: an index of each file's members is made once, and any of them is read without those before it."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from snugfit.system.disk_files import cache_folder, disk_problem, whole_file

TAR = ".tar"
_MARK = re.compile(rf"{re.escape(TAR)}{re.escape(os.sep)}", re.IGNORECASE)
"""Stands in a path between a tar file and the name of its member."""

_INDEX = "snugfit index of a tar file, 2"
_BLOCK, _BLOCKS = 4096, 64
_END = 512
_READ = 1 << 20
_INDICES = 4096
"""Tar files whose indices a process keeps at hand."""


class Member(NamedTuple):
    """A file in a tar file.

    Args:
        offset: of what is stored of it.
        pieces: place and size of each piece that is stored of a sparse file, one behind the other; zeros stand between them.
    """

    name: str
    offset: int
    size: int
    pieces: tuple[tuple[int, int], ...] = ()


class TarIndex(NamedTuple):
    """The members of a tar file, in their order.

    Args:
        problem: what is wrong with its end, behind these members; None where it is whole.
    """

    members: tuple[Member, ...]
    problem: str | None = None


class _State(NamedTuple):
    """The marks of a file by which a change is seen without reading it."""

    size: int
    changed: int


def tar_index(path: str) -> TarIndex:
    """Return the members of a tar file: from this process, from the cache, or from the headers in the file.

    Raises:
        OSError: it cannot be read.
        tarfile.TarError: it is no tar file.
    """
    return _index_at(path, _state(path))


def split_member(path: str) -> tuple[str, str] | None:
    """Return the tar file that a path leads into, and the name of the member; None where it leads to a file.

    >>> split_member("photos.png") is None, split_member("no/such.tar/cat.png") is None
    (True, True)
    """
    for mark in _MARK.finditer(path):
        tar = path[: mark.start() + len(TAR)]
        if os.path.isfile(tar):
            return tar, path[mark.end() :]
    return None


def opened_file(path: str) -> BinaryIO:
    """Return a file to read from, which may be a member of a tar file.

    Raises:
        OSError: there is none, or it cannot be read.
    """
    inside = split_member(path)
    if inside is None:
        return open(path, "rb")  # the caller closes it
    return io.BytesIO(read_member(*inside))


def file_of(source: Any) -> AbstractContextManager[Any]:
    """Return a file by its path, as `opened_file`; what is an open file already is given back, and stays open."""
    return opened_file(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else nullcontext(source)


def read_member(tar: str, name: str) -> bytes:
    """Return the content of a member of a tar file.

    Raises:
        OSError: there is no such member, or not all of it.
    """
    state = _state(tar)
    try:
        member = _by_name(tar, state)[name]
    except (KeyError, tarfile.TarError) as error:
        raise FileNotFoundError(2, "there is no such member", f"{tar}/{name}") from error
    with open(tar, "rb") as file:
        return content_of(file, member)


def content_of(file: BinaryIO, member: Member) -> bytes:
    """Return the content of a member.

    Raises:
        OSError: the file ends in the middle of it.
    """
    file.seek(member.offset)
    content = bytearray(member.size) if member.pieces else bytearray()
    for place, size in member.pieces or ((0, member.size),):
        piece = file.read(size)
        if len(piece) < size:
            raise OSError(f"the tar file ends in the middle of {member.name}")
        content[place : place + size] = piece
    return bytes(content)


def _state(path: str) -> _State:
    status = os.stat(path)
    return _State(status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=_INDICES)
def _index_at(path: str, state: _State) -> TarIndex:
    entry = cache_folder() / "shards" / f"{_looked_at(path, state)}.json"
    # what is broken or not there is made anew: the tar file says all of it
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read(entry)
    index = _scan(path, state.size)
    with suppress(OSError):  # without room for it the headers are read again next time
        _write(entry, index)
    return index


@functools.lru_cache(maxsize=_INDICES)
def _by_name(path: str, state: _State) -> Mapping[str, Member]:
    return {member.name: member for member in _index_at(path, state).members}


def _looked_at(path: str, state: _State) -> str:
    """Return a digest of a file's size, its time and blocks that are spread over it, which stays where it is moved."""
    digest = hashlib.sha256(f"{_INDEX} {state.size} {state.changed}".encode())
    with open(path, "rb") as file:
        for place in range(_BLOCKS):
            file.seek(max(0, state.size - _BLOCK) * place // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:32]


def _scan(path: str, size: int) -> TarIndex:
    """Return the members of a tar file by its headers: its files, and hard links to them, which tar makes of a file that has two names.

    What it holds besides is left out.
    """
    members: list[Member] = []
    by_name: dict[str, Member] = {}
    with tarfile.open(path, "r:") as tar:
        while True:
            try:
                header = tar.next()
            except tarfile.TarError:
                return TarIndex(tuple(members), "ends in the middle, or is damaged there")
            if header is None:
                break
            pieces = _pieces_of(header)
            stored = sum(count for _, count in pieces) if pieces else header.size
            if header.isreg():
                if header.offset_data + stored > size:
                    return TarIndex(tuple(members), f"ends in the middle of {header.name}")
                member = Member(header.name, header.offset_data, header.size, pieces)
            elif header.islnk() and header.linkname in by_name:
                member = by_name[header.linkname]._replace(name=header.name)
            else:
                continue
            members.append(member)
            by_name[member.name] = member
        end = tar.offset
    # tarfile takes a damaged header for the end, and the end of the file too
    return TarIndex(tuple(members), _problem_behind(path, end))


def _pieces_of(header: tarfile.TarInfo) -> tuple[tuple[int, int], ...]:
    sparse: list[tuple[int, int]] | None = getattr(header, "sparse", None)  # typeshed has it as a number
    return () if sparse is None else tuple(sparse) or ((header.size, 0),)


def _problem_behind(path: str, end: int) -> str | None:
    """Return what is wrong with a tar file from the end of its last member on; None where nothing but zeros is there."""
    with open(path, "rb") as file:
        file.seek(end)
        last = file.read(_END)
        if last != bytes(_END):
            return "is damaged behind its last member" if last else "was cut off behind its last member"
        while rest := file.read(_READ):
            if rest.count(0) < len(rest):
                return "goes on behind its end, as tar files that are joined by cat do: tar -A joins them"
    return None


def _read(entry: Path) -> TarIndex:
    entries = json.loads(entry.read_bytes())
    members = (
        Member(name, offset, size, tuple((place, count) for place, count in pieces))
        for name, offset, size, pieces in entries["members"]
    )
    return TarIndex(tuple(members), entries["problem"])


def _write(entry: Path, index: TarIndex) -> None:
    """Write an index."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(entry, private=True) as draft, draft.open("w") as file:
        json.dump({"members": index.members, "problem": index.problem}, file)


def reason_of(error: Exception) -> str:
    """Return in words why a tar file cannot be read."""
    if isinstance(error, OSError):
        return disk_problem(error) or type(error).__name__
    return str(error).partition("\n")[0] or type(error).__name__
