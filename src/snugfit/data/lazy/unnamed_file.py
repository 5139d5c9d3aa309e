"""A file without a name in the user's cache, for what is made once and would fill the memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from mmap import ACCESS_READ, mmap

from snugfit.system.disk_files import SPARE_BYTES, cache_folder


class UnnamedFile:
    """Bytes that are added one after the other, and read from any place; the file goes with the last process that has it open.

    Once the disk does not take what is added it takes nothing more: who adds keeps it in memory.

    >>> file = UnnamedFile()
    >>> file.add([b"a good ", b"film"]), file.read(2, 4), file.size
    (True, b'good', 11)
    """

    def __init__(self) -> None:
        self._file: FileIO | None = None
        self._is_full = False
        self.size = 0

    def add(self, parts: Sequence[bytes | memoryview]) -> bool:
        """Add bytes, and return whether they are written, all of them or none; a full disk gets its room back."""
        if self._is_full:
            return False
        size = sum(map(len, parts))
        try:
            if self._has_room(size):
                self._write(parts)
                self.size += size
                return True
        except OSError:
            if self._file is not None:
                with suppress(OSError):  # others may need what room there was
                    self._file.truncate(self.size)
        self._is_full = True
        return False

    def _has_room(self, size: int) -> bool:
        cache_folder().mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(cache_folder()).free >= size + SPARE_BYTES

    def _write(self, parts: Sequence[bytes | memoryview]) -> None:
        if self._file is None:  # without a buffer, in which bytes would wait that a full disk does not take
            self._file = tempfile.TemporaryFile(dir=cache_folder(), buffering=0)  # noqa: SIM115 (it goes with what is read)
        self._file.seek(self.size)
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[self._file.write(left) :]

    def read(self, start: int, size: int) -> bytes:
        """Return so many of the bytes that were added, from a place on."""
        assert self._file is not None  # it has bytes
        if hasattr(os, "pread"):  # not by a position that a copy of this process would share
            return os.pread(self._file.fileno(), size, start)
        self._file.seek(start)
        return self._file.read(size)

    def mapped(self) -> mmap:
        """Return all of it, mapped into memory to be read only; the file goes with that."""
        assert self._file is not None  # it has bytes
        # as no np.memmap: on Windows that would name the file, which others could not open
        return mmap(self._file.fileno(), self.size, access=ACCESS_READ)
