"""Files on the disk: the user's cache, what is written whole, what outlives a power cut, locks of folders, and errors, whichever library raises them."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_RUST = re.compile(r"\(os error \d+\)")
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


def disk_problem(error: BaseException) -> str | None:
    """Return what the disk said, if an error comes from it; safetensors and tokenizers raise no `OSError`.

    >>> disk_problem(OSError(28, "No space left on device")), disk_problem(ValueError("too few rows"))
    ('No space left on device', None)
    >>> disk_problem(Exception("No space left on device (os error 28)"))
    'No space left on device (os error 28)'
    """
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) if _RUST.search(str(error)) else None


def is_full(error: BaseException | str) -> bool:
    """Return whether an error, or the words of one, says that a disk or a quota is full.

    >>> is_full(OSError(28, "No space left on device")), is_full("Permission denied")
    (True, False)
    """
    return any(words in str(error) for words in _FULL)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Windows flushes no folders, and files only where they may be written.

    >>> import tempfile
    >>> flush(Path(tempfile.mkdtemp()))
    """
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


PARTIAL = ".partial"
"""The end of a draft's name."""


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Yield a draft beside `path`, which takes its place when all is written and is removed otherwise: a reader sees the old file or the new one.

    Args:
        private: whether its owner alone may read it.
    Raises:
        OSError: it cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> with whole_file(path) as draft:
    ...     _ = draft.write_text("written")
    >>> path.read_text(), [each.name for each in path.parent.iterdir()]
    ('written', ['a.txt'])
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")  # a name that no other writer has
    try:
        if private:
            draft.touch(0o600, exist_ok=False)
        yield draft
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


SPARE_BYTES = 1 << 30
"""Free space on its disk that is left to others."""


def cache_folder() -> Path:
    """Return the folder of plans, calibrations and tokens; XDG_CACHE_HOME moves it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "snugfit"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Temporarily be the only process that holds this lock of a folder, once the one before it is done; no file stays there.

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
