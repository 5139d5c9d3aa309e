"""Errors of the disk, whichever library raises them."""

from __future__ import annotations

import errno
import os
import re

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
