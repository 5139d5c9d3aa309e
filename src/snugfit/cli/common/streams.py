"""Output that outlives the terminal or the pipe that it goes to."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF)
"""What writing to a closed pipe or to a terminal that was closed fails with."""


class LastingStream:
    """A stream whose reader may go away: what is written from then on is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._lasting(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        self._lasting(self._stream.writelines, lines)

    def flush(self) -> None:
        self._lasting(self._stream.flush)

    def _lasting(self, act: Callable[..., Any], *arguments: Any) -> None:
        try:
            act(*arguments)
        except UnicodeEncodeError:  # what a terminal or a pipe has no character for is shown by its number
            encoding = self._stream.encoding or "ascii"
            act(*(each.encode(encoding, "backslashreplace").decode(encoding) for each in arguments))
        except OSError as error:
            if error.errno not in _GONE:
                raise
            # what is still in the buffers, of C too, must fail nobody who flushes them later, such as the interpreter at its end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            with suppress(OSError, ValueError):  # a stream without a descriptor
                os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[None]:
    """Temporarily let stdout and stderr outlive who reads them."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (LastingStream(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stdout, sys.stderr = before
