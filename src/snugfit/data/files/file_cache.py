"""A cache of things that are made of files, such as decoded pictures: each is a file that is mapped into memory, made once, and by every later epoch and run read as it is.

An entry is named by a digest of its file's path, size in bytes, the time of its last change, and that at which the system has seen it change, which no
copy of a file takes along; and of all else that decides what is made, such as settings and the versions of libraries. It begins with a checksum, and appears
under its name when it is whole; one that is broken is made anew.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from snugfit.data.files.tar_members import split_member
from snugfit.errors import SnugfitWarning
from snugfit.system.disk_files import SPARE_BYTES, cache_folder, disk_problem, whole_file

_HEAD = struct.Struct("<8sI4x")
"""Format, and the CRC-32 of what follows; arrays behind it are aligned."""
_MAGIC = b"SNUGFIL1"
_DAY = 86400.0
_FULL, _HALF = 0.9, 0.5
"""Parts of the limit: from the first on, a run begins by removing what was used least recently, down to the second."""
_COUNTED_AGAIN = 256 << 20
"""Bytes that a process writes before it looks what others have written."""


class FileCache:
    """Things made of files, on the disk, up to so many bytes in all; what has no room is made each time.

    Args:
        name: of their folder in the user's cache.
        limit: bytes of all entries in it together, of this and other data sets.
        words: for what it holds, and for what is done where that cannot be written.
    """

    def __init__(self, name: str, limit: int, words: tuple[str, str]) -> None:
        self._folder, self._limit, self._words = cache_folder() / name, limit, words
        self._used = _with_room(self._folder, limit)
        self._own, self._closed = 0, False

    def entry(self, source: str, *decided_by: object) -> Path:
        """Return the path of what is made of a file.

        Args:
            decided_by: all that it hangs on beside the file.
        Raises:
            OSError: there is no such file.
        """
        path = os.path.abspath(source)
        inside = split_member(path)
        status = os.stat(path if inside is None else inside[0])
        described = "\0".join(
            map(str, (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, *decided_by))
        )
        digest = hashlib.sha256(described.encode("utf-8", "surrogateescape")).hexdigest()
        return self._folder / digest[:2] / digest[2:40]

    def read(self, entry: Path) -> memoryview | None:
        """Return what an entry holds, to be read only; None where there is none, or it is broken."""
        try:
            with entry.open("rb") as file:
                changed = os.fstat(file.fileno()).st_mtime
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            magic, checksum = _HEAD.unpack(mapped[: _HEAD.size])
        except (OSError, ValueError, struct.error):
            return None
        held = mapped[_HEAD.size :]
        if magic != _MAGIC or zlib.crc32(held) != checksum:
            return None
        if changed < time.time() - _DAY:
            with suppress(OSError):  # it was used: others go before it
                os.utime(entry)
        return held

    def keep(self, entry: Path, content: bytes) -> None:
        """Write an entry, where there is room for it; what keeps it from being written is a warning."""
        size = _HEAD.size + len(content)
        if self._own > _COUNTED_AGAIN:
            self._used, self._own = sum(size for _, size, _ in _entries(self._folder)), 0
        if self._closed or self._used + self._own + size > self._limit:
            return
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(entry.parent).free < size + SPARE_BYTES:
                self._closed = True
                return
            with whole_file(entry, private=True) as draft, draft.open("wb") as file:
                file.write(_HEAD.pack(_MAGIC, zlib.crc32(content)))
                file.write(content)
            self._own += size
        except OSError as error:
            # another process may have kept it meanwhile, and Windows replaces no file that is mapped
            if self.read(entry) is not None:
                return
            self._closed = True
            contents, instead = self._words
            warnings.warn(
                f"{contents} cannot be kept in {self._folder} ({disk_problem(error)}): {instead}.",
                SnugfitWarning,
                stacklevel=2,
            )


def code_digest(folder: Path) -> str:
    """Return the sha256 of the Python files of a folder: with other code what they make may be another thing."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _with_room(folder: Path, limit: int) -> int:
    """Return the bytes of all entries, after those that were used least recently are removed where there is little room."""
    entries = sorted(_entries(folder))
    used = sum(size for _, size, _ in entries)
    if used <= _FULL * limit:
        return used
    for _, size, path in entries:
        if used <= _HALF * limit:
            break
        with suppress(OSError):  # another process removes too
            path.unlink()
            used -= size
    return used


def _entries(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield when each entry was used last, its bytes and its path."""
    for part in folder.glob("??"):
        with suppress(OSError), os.scandir(part) as files:
            for file in files:
                status = file.stat()
                yield status.st_mtime, status.st_size, Path(file.path)
