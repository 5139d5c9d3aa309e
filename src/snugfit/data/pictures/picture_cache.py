"""Decoded pictures in the user's cache, each a file that is mapped into memory: a picture is decoded once, and by every later epoch and run read as it is.

An entry is named by a digest of the picture's path, its size in bytes, the time of its last change, and that at which the system has seen it change, which no
copy of a file takes along: pictures without compression have one size. It begins with the size of the picture and a checksum of its pixels, and appears under its
name when it is whole; one that is broken is made anew.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.files.tar_members import split_member
from snugfit.data.pictures.pixels import opened
from snugfit.errors import SnugfitWarning
from snugfit.system.cache_folder import cache_folder
from snugfit.system.disk_errors import disk_problem

if TYPE_CHECKING:
    from PIL import Image

_HEAD = struct.Struct("<8sIIII")
"""Format, width, height, channels, and the CRC-32 of the pixels."""
_MAGIC = b"SNUGPIC1"
_MODES = {1: "L", 3: "RGB"}
_DAY = 86400.0
_FULL, _HALF = 0.9, 0.5
"""Parts of the limit: from the first on, a run begins by removing what was used least recently, down to the second."""
_COUNTED_AGAIN = 256 << 20
"""Bytes that a process writes before it looks what others have written."""
_SPARE_BYTES = 1 << 30
"""Free space that is left to others on the disk."""


class PictureCache:
    """Decoded pictures on the disk, up to so many bytes in all; what has no room is decoded each time.

    Args:
        limit: bytes of all entries together, of this and other data sets.
    """

    def __init__(self, limit: int) -> None:
        self._folder, self._limit = cache_folder() / "pictures", limit
        self._used = _with_room(self._folder, limit)
        self._own, self._closed = 0, False

    def opened(self, source: str, channels: int = 3) -> Image.Image:
        """Return a picture as `pixels.opened` does.

        Raises:
            OSError: it cannot be decoded.
        """
        entry = self._folder.joinpath(*_name(source, channels))
        known = _read(entry)
        if known is not None:
            return known
        picture = opened(source, channels)
        self._keep(entry, picture, channels)
        return picture

    def _keep(self, entry: Path, picture: Image.Image, channels: int) -> None:
        """Write a picture, where there is room for it; what keeps it from being written is a warning."""
        size = _HEAD.size + picture.width * picture.height * channels
        if self._own > _COUNTED_AGAIN:
            self._used, self._own = sum(size for _, size, _ in _entries(self._folder)), 0
        if self._closed or self._used + self._own + size > self._limit:
            return
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(entry.parent).free < size + _SPARE_BYTES:
                self._closed = True
                return
            _write(entry, picture, channels)
            self._own += size
        except OSError as error:
            if (
                _read(entry) is not None
            ):  # another process has kept it meanwhile, and Windows replaces no file that is mapped
                return
            self._closed = True
            warnings.warn(
                f"Decoded pictures cannot be kept in {self._folder} ({disk_problem(error)}): they are decoded in each epoch.",
                SnugfitWarning,
                stacklevel=2,
            )


def _name(source: str, channels: int) -> tuple[str, str]:
    """Return the folder and the file of a picture's entry.

    Raises:
        OSError: there is no such picture.
    """
    path = os.path.abspath(source)
    inside = split_member(path)
    status = os.stat(path if inside is None else inside[0])
    described = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0{channels}"
    digest = hashlib.sha256(described.encode("utf-8", "surrogateescape")).hexdigest()
    return digest[:2], digest[2:40]


def _read(entry: Path) -> Image.Image | None:
    """Return what an entry holds; None where there is none, or it is broken."""
    from PIL import Image

    try:
        with entry.open("rb") as file:
            changed = os.fstat(file.fileno()).st_mtime
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, width, height, channels, checksum = _HEAD.unpack(mapped[: _HEAD.size])
    except (OSError, ValueError, struct.error):
        return None
    held = mapped[_HEAD.size :]
    if magic != _MAGIC or len(held) != width * height * channels or zlib.crc32(held) != checksum:
        return None
    if changed < time.time() - _DAY:
        with suppress(OSError):  # it was used: others go before it
            os.utime(entry)
    mode = _MODES[channels]
    pixels: Any = held  # a buffer, which Pillow's types do not know
    return Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)


def _write(entry: Path, picture: Image.Image, channels: int) -> None:
    """Write an entry, which appears under its name when it is whole.

    Raises:
        OSError: it cannot be written.
    """
    held = picture.tobytes()
    head = _HEAD.pack(_MAGIC, picture.width, picture.height, channels, zlib.crc32(held))
    descriptor, partial = tempfile.mkstemp(".partial", dir=entry.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(head)
            file.write(held)
        os.replace(partial, entry)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


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
