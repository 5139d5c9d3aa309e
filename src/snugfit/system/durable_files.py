"""Files that outlive a power cut."""

from __future__ import annotations

import os
from pathlib import Path


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
