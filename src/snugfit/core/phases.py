"""What the step is doing now, for whoever watches: the planner's recorder, a profiler. Costs nothing where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

Part = TypeVar("Part")
Label = Callable[[str], AbstractContextManager[object]]
Shorten = Callable[[Sequence[Any], Sequence[Hashable], bool], Iterator[Any]]
"""From the parts of a loop and the kind of each to those that are run; whether operators of the others are listed beside them."""

_watching: Label | None = None
_shorten: Shorten | None = None
_NOTHING = nullcontext()


def phase(name: str) -> AbstractContextManager[object]:
    """A context around a part of the step: data, a pass over the micro-batches, in it forward, loss, backward, unscale, adjust, optimizer, techniques, evaluation, save."""
    return _NOTHING if _watching is None else _watching(name)


def alike(parts: Sequence[Part], kind: Callable[[Part], Hashable], listed: bool = False) -> Iterator[Part]:
    """The parts of a loop, one after the other: all of them wherever there are numbers.

    A dry run leaves out those of which it has seen the like, so the loop may leave nothing behind for a part but numbers, in memory
    that does not grow with the parts, and may not end early.

    Args:
        kind: what decides which operators run for a part, on tensors of which sizes.
        listed: whether a dry run lists the operators of each part that it leaves out, in place of counting those that it runs several
            times: seconds are then added up in the order of the loop.

    >>> list(alike([3, 3, 1], kind=int))
    [3, 3, 1]
    """
    return iter(parts) if _shorten is None else _shorten(parts, [kind(part) for part in parts], listed)


@contextmanager
def watched(label: Label, shorten: Shorten | None = None) -> Iterator[None]:
    """Within, each phase is entered under `label(name)`, on any thread, and loops over parts that are alike go as `shorten` has them.

    >>> seen = []
    >>> def label(name):
    ...     seen.append(name)
    ...     return nullcontext()
    >>> with watched(label), phase("forward"):
    ...     pass
    >>> seen
    ['forward']
    """
    global _watching, _shorten
    before = _watching, _shorten
    _watching, _shorten = label, shorten
    try:
        yield
    finally:
        _watching, _shorten = before
