"""Frames of the script's own code: the line at which it stands, and the lines that have called it."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from types import FrameType

_PACKAGE = str(Path(__file__).resolve().parents[3])
_LIBRARIES = tuple(
    {
        *(os.path.realpath(path) + os.sep for path in sysconfig.get_paths().values() if "python" in path),
        _PACKAGE + os.sep,
    }
)


@cache
def is_own(file: str) -> bool:
    """Return whether this is a file of the script: of no library, and no part of the interpreter."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    try:
        return not os.path.realpath(file).startswith(_LIBRARIES)
    except OSError:  # a relative path, and the working folder was deleted
        return True


def is_asked_by_script() -> bool:
    """Return whether the script itself calls the wrapper that asks, perhaps through other wrappers of the observer: not a library."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame is not None and is_own(frame.f_code.co_filename)


def innermost() -> FrameType | None:
    """Return the innermost frame of the script's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def own_frames(most: int) -> Iterator[FrameType]:
    """Yield frames of the script's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and most:
        if is_own(frame.f_code.co_filename):
            most -= 1
            yield frame
        frame = frame.f_back


def where() -> str:
    """file:line of the script, relative to the working folder where it lies inside; "" in a thread of a library."""
    frame = innermost()
    if frame is None:
        return ""
    place = _place(frame.f_code.co_filename, frame.f_lineno)
    if place not in _asked:
        _asked.add(place)
        _note_callers(frame)
    return place


_asked: set[str] = set()
callers: dict[str, list[str]] = {}
"""The lines of the script that were seen to call a function of its own, by the function's first line: those that stood around what was looked at."""


def _note_callers(frame: FrameType) -> None:
    """Note the lines of the script that have called each other down to this frame, the first time that its line is asked for; a library's frames between them are left out."""
    called, outer = frame, frame.f_back
    while outer is not None:
        if is_own(outer.f_code.co_filename):
            line = _place(outer.f_code.co_filename, outer.f_lineno)
            if called.f_code.co_name != "<module>":
                lines = callers.setdefault(
                    _place(called.f_code.co_filename, called.f_code.co_firstlineno), []
                )
                lines += [] if line in lines else [line]
            called = outer
        outer = outer.f_back


def name_in_script(thing: object) -> str:
    """Return the name that the script has for a thing where it calls it: of a variable, or of an attribute of one."""
    for frame in own_frames(2):
        held = list(frame.f_locals.items())
        inner = [pair for _, each in held for pair in list(getattr(each, "__dict__", {}).items())]
        for name, each in [*held, *inner]:
            if each is thing and name != "self":
                return str(name)
    return ""


def line_in(frame: FrameType, number: int) -> str:
    """Return file:line for a line of the file that a frame runs."""
    return _place(frame.f_code.co_filename, number)


@lru_cache(maxsize=4096)
def _place(file: str, number: int) -> str:
    """Return file:line as it is shown, from the folder in which it was first seen."""
    return f"{shown(file)}:{number}"


def shown(file: str) -> Path:
    """Return a file's path relative to the working folder, where it lies inside."""
    try:
        folder = os.getcwd()
    except OSError:  # it was deleted
        folder = ""
    return _shown(file, folder)


@cache
def _shown(file: str, folder: str) -> Path:
    path = Path(file)
    try:
        return path.resolve().relative_to(folder)
    except (ValueError, OSError):
        return path


def called_directly(past: str = "") -> bool:
    """Return whether the function that is being wrapped was called by the script itself, or by a module of this name that it called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or (past and str(frame.f_globals.get("__name__")).startswith(past))
    ):
        frame = frame.f_back
    return frame is not None and is_own(frame.f_code.co_filename)


def forget_callers() -> None:
    """Forget which lines have called which: another script begins."""
    _asked.clear()
    callers.clear()
