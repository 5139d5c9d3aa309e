"""A folder that one process at a time works in, without a file that would stay there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Temporarily be the only process that holds this lock of a folder, once the one before it is done.

    Systems and disks without such locks, as Windows and some shares, have none: there two at a time are the user's to avoid.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a share without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
