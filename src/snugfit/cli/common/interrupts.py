"""Ctrl-C that comes while a library is imported which does not bear it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C has ended before or after a run."""

_WHOLE = ("numpy", "torch")
"""Libraries that are imported whole or not at all. As its C++ code is set up torch drops an interrupt, goes on with half of NumPy, or aborts the process."""

_AGAIN_SECONDS = 0.05


@contextmanager
def whole_imports() -> Iterator[None]:
    """Temporarily have Ctrl-C wait until such a library is there; at any other time it interrupts at once."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, _receive)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _receive(number: int, frame: FrameType | None) -> None:
    if not any(map(_is_being_imported, _WHOLE)):
        signal.default_int_handler(number, frame)
    again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _is_being_imported(name: str) -> bool:
    """Return whether a module has begun to be imported and is not there yet; importlib says so of its spec."""
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))
