"""Watch whether graphs of values that were differentiated long ago are still held, and by which variable."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.script_events import GraphKept
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import innermost, is_own, shown, where
from snugfit.doctor.observe.watchers.rows.row_digests import tensors_in

MANY = 10
"""So many graphs at once are held by no variable that only names the last value."""
MOST = 200
OUTPUTS = 5
"""Updates before the last one whose outputs are held still, of the first ones."""
_KEY, _OUTPUT = "snugfit", "snugfit output"
_MOST_NODES, _MOST_MARKED = 64, 512


class _Sentinel:
    """Something that lives as long as a node of a graph.

    Attributes:
        differentiated: whether something was differentiated that is computed from what holds it.
    """

    differentiated = False


class KeptGraphs:
    """Values that were differentiated: which of their graphs live on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sentinels: list[weakref.ref[_Sentinel]] = []
        self._seen = 0
        self._reported = False
        self._of_updates: dict[tuple[int, int], weakref.ref[_Sentinel]] = {}

    def note_output(self, model: int, output: Any) -> None:
        """Note what a module gave: a state of it that is carried on holds the graphs of all updates before."""
        update = self._recorder.log.updates, model
        if self._reported or not self._recorder.detailed:
            return
        given = (
            [output]
            if isinstance(output, Tensor)
            else tensors_in(output if isinstance(output, tuple) else [output])
        )
        known = self._of_updates.get(update)
        sentinel = None if known is None else known()
        for each in given:
            metadata = getattr(each.grad_fn, "metadata", None)
            if metadata is not None:
                if sentinel is None:
                    sentinel = _Sentinel()
                    self._of_updates[update] = weakref.ref(sentinel)
                metadata[_OUTPUT] = sentinel

    def _held_since(self) -> int:
        """Return of how many updates before the last one outputs are held with their graphs; what waits for the collector is not."""
        update = self._recorder.log.updates
        held = self._held_before(update)
        if held >= OUTPUTS:
            gc.collect()
            held = self._held_before(update)
        return held

    def _held_before(self, update: int) -> int:
        living = ((at, each()) for (at, _), each in self._of_updates.items() if at < update - 1)
        # what nothing has been differentiated of is waited for, as are an episode's actions while a critic steps
        return len({at for at, each in living if each is not None and each.differentiated})

    def note(self, value: Tensor) -> None:
        """Note a value that is about to be differentiated; say, once, that too many of the earlier ones are held."""
        held = 0 if self._reported else self._held_since()
        if held >= OUTPUTS:
            self._reported = True
            at, name = _holder()
            self._recorder.add(GraphKept(at or where(), self._recorder.log.updates, held, name))
            return
        if (
            not self._reported and self._recorder.detailed
        ):  # after the look: what this value waited for was due to it
            _mark_differentiated(value.grad_fn)
        metadata = getattr(value.grad_fn, "metadata", None)
        if self._reported or metadata is None or self._seen >= MOST:
            return
        self._sentinels = [each for each in self._sentinels if each() is not None]
        if len(self._sentinels) >= MANY:
            self._reported = True
            at, name = _holder()
            update = self._recorder.log.updates
            self._recorder.add(GraphKept(at or where(), update, len(self._sentinels), name))
            return
        self._seen += 1
        metadata[_KEY] = sentinel = _Sentinel()
        self._sentinels.append(weakref.ref(sentinel))


def _mark_differentiated(node: Any) -> None:
    """Mark the outputs of modules that a value is computed from, near its end."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < _MOST_MARKED:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        sentinel = (getattr(node, "metadata", None) or {}).get(_OUTPUT)
        if sentinel is not None:
            sentinel.differentiated = True
        todo += [each for each, _ in node.next_functions]


def _holder() -> tuple[str, str]:
    """Return the line that fills the script's variable which holds the graphs, and its name; "" for both where none is seen."""
    frame = innermost()
    while frame is not None and is_own(frame.f_code.co_filename):
        for name, value in list(frame.f_locals.items()):
            if _holds_graphs(value):
                return _line(frame, name, frame.f_code.co_filename), name
            held = [each for each, part in _parts_of(value) if _holds_graphs(part)]
            if held:
                of_object = not isinstance(value, dict)
                files = [frame.f_code.co_filename, *([_file_of(type(value))] if of_object else [])]
                lines = [
                    (_line(frame, each, file, of_object=of_object), each) for each in held for file in files
                ]
                at, grown = next((each for each in lines if each[0]), ("", held[0]))
                return at, f"{name}.{grown}" if of_object else f"{name}[{grown!r}]"
        frame = frame.f_back
    return "", ""


def _holds_graphs(value: Any) -> bool:
    """Return whether a tensor sums up values that were differentiated, or a list holds such."""
    if isinstance(value, list | deque):
        rows = [
            [*each.values()] if type(each) is dict else each if type(each) is tuple else [each]
            for each in value
        ]
        return sum(_is_noted(each.grad_fn) for row in rows for each in row if isinstance(each, Tensor)) > 1
    return isinstance(value, Tensor) and value.grad_fn is not None and _noted_below(value.grad_fn) > 1


def _parts_of(value: Any) -> list[tuple[str, Any]]:
    """Return what a dictionary holds by name, or an object of the script's own classes, one level down where that is a dictionary."""
    own = is_own(getattr(sys.modules.get(type(value).__module__), "__file__", None) or "<")
    held = value if type(value) in (dict, defaultdict) else getattr(value, "__dict__", None) if own else None
    if not isinstance(held, dict):
        return []
    named = [(str(name), each) for name, each in held.items()]
    inner = [
        (str(name), each)
        for _, part in named
        if type(part) in (dict, defaultdict)
        for name, each in part.items()
    ]
    return [*named, *inner]


def _is_noted(node: Any) -> bool:
    return _KEY in (getattr(node, "metadata", None) or {})


def _noted_below(node: Any) -> int:
    """Return how many noted values a chain of sums has, near its end."""
    todo, noted = [node], 0
    for _ in range(_MOST_NODES):
        if not todo:
            break
        node = todo.pop()
        if _is_noted(node):
            noted += 1
        elif type(node).__name__.startswith(("Add", "Div", "Mul")):
            todo += [each for each, _ in _next(node) if each is not None]
    return noted


def _next(node: Any) -> Iterable[tuple[Any, int]]:
    following: Iterable[tuple[Any, int]] = node.next_functions
    return following


def _file_of(kind: type) -> str:
    """Return the source of a class of the script's."""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")


def _line(frame: FrameType, name: str, file: str, *, of_object: bool = False) -> str:
    """Return file:line where the variable grows, or the attribute of an object; "" where this source does not show it."""
    grows = re.compile(rf"\b{re.escape(name)}\b[\"']?\]?\s*(\+=|\.append\(|=.*\b{re.escape(name)}\b)")
    lines = linecache.getlines(file)
    first = 1 if of_object else frame.f_code.co_firstlineno  # a method of its class may stand anywhere
    for number in range(first, len(lines) + 1):
        if grows.search(lines[number - 1]):
            return f"{shown(file)}:{number}"
    return ""
