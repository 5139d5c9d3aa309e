"""Vocabularies that a script has written itself: dictionaries of words and their numbers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from snugfit.doctor.observe.recording.script_frames import is_own, own_frames

_END = re.compile(
    r"^[<\[|(]*\s*/?(eos|end|eot|stop|s|end_?of_?(text|sentence|seq\w*|turn)|endoftext|im_end)\s*[>\]|)]*$",
    re.IGNORECASE,
)
_BRACKETED = re.compile(r"^[<\[(].*[>\])]$")
MOST_FRAMES, MOST_PARTS = 12, 400


def end_of(classes: int) -> tuple[int, str] | None:
    """Return the number and the name of the token that ends a text, in a vocabulary of so many words that the script has in reach; None without."""
    for words in _dictionaries():
        if len(words) != classes or not all(isinstance(each, int) for each in words.values()):
            continue
        ends = [
            (number, name)
            for name, number in words.items()
            if isinstance(name, str)
            and _BRACKETED.match(name)
            and _END.match(name)
            and name not in ("<s>", "[S]")
        ]
        if len(ends) == 1:
            return ends[0]
    return None


def _dictionaries() -> Iterator[Mapping[Any, Any]]:
    """Yield the dictionaries that the script's functions and modules have by name, and those of their own objects."""
    seen: set[int] = set()
    parts = 0
    for frame in own_frames(MOST_FRAMES):
        for held in (frame.f_locals, frame.f_globals):
            for each in list(held.values()):
                # of modules alone: an object's own __getattr__ may do anything
                own = isinstance(each, ModuleType) and is_own(_file_of(each) or "<")
                inner = list(vars(each).values()) if own or _is_object(each) else []
                for part in (each, *inner):
                    if type(part) is dict and part and id(part) not in seen:
                        seen.add(id(part))
                        parts += 1
                        yield part
                if parts > MOST_PARTS:
                    return


def _is_object(value: Any) -> bool:
    """Return whether a value is an object, with a dictionary of parts, of a class of the script's."""
    module = sys.modules.get(type(value).__module__)
    return (
        bool(type(value).__dictoffset__)
        and isinstance(module, ModuleType)
        and is_own(_file_of(module) or "<")
    )


def _file_of(module: ModuleType) -> str:
    return str(vars(module).get("__file__") or "")
