"""The phase of the step, for whoever watches: the planner's recorder, a profiler. Costs nothing where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from snugfit.system.nothing import NOTHING

Part = TypeVar("Part")
Made = TypeVar("Made")
Label = Callable[[str], AbstractContextManager[object]]


class Remains(Protocol):
    """The objects that each part of a loop leaves behind, in containers of any depth with tensors in them."""

    def of(self, part: Any) -> Any:
        """Return what a part that was run has left."""

    def leave(self, part: Any, remains: Any) -> None:
        """Leave such a thing for a part that is not run."""


Shorten = Callable[[Sequence[Any], Sequence[Hashable], bool, Remains | None], Iterator[Any]]
"""From the parts of a loop and the kind of each to those that are run; the rest as for `alike`."""

Again = Callable[[Hashable, Sequence[Any], Callable[[], Any]], Any]
"""From what `following` is given to what it returns."""

_watching: Label | None = None
_shorten: Shorten | None = None
_again: Again | None = None


class _Contexts(dict[str, AbstractContextManager[object]]):
    """The context around each phase: where nobody watches it is found without a frame of Python, as an update asks a dozen times."""

    def __missing__(self, name: str) -> AbstractContextManager[object]:
        if _watching is None:
            self[name] = NOTHING
        if _watching is not None:  # asked again, as another thread may have begun to watch
            self.clear()
            return _watching(name)
        return NOTHING


_contexts = _Contexts()

phase: Label = _contexts.__getitem__
"""Return a context around a part of the step: data, a pass over the micro-batches, in it forward, loss, backward, unscale, adjust, optimizer, techniques, evaluation, save."""


def alike(
    parts: Sequence[Part],
    kind: Callable[[Part], Hashable],
    listed: bool = False,
    remains: Remains | None = None,
) -> Iterator[Part]:
    """Yield the parts of a loop, one after the other: all of them wherever there are numbers.

    A dry run leaves out those of which it has seen the like, so the loop may leave nothing behind for a part but numbers, in memory
    that does not grow with the parts, or what `remains` tells of, and may not end early.

    Args:
        kind: what decides which operators run for a part, on tensors of which sizes.
        listed: whether a dry run lists the operators of each part that it leaves out, in place of counting those that it runs several
            times: seconds are then added up in the order of the loop.
        remains: what a part leaves behind. A dry run then runs two parts of each kind, and leaves copies of it for the others.

    >>> list(alike([3, 3, 1], kind=int))
    [3, 3, 1]
    """
    if _shorten is None:
        return iter(parts)
    return _shorten(parts, [kind(part) for part in parts], listed, remains)


def following(kind: Hashable, tensors: Sequence[Any], make: Callable[[], Made]) -> Made:
    """Return `make()`, a tensor in memory of its own, made of `tensors` without a gradient.

    A dry run that has seen the like makes it at once, and takes the operators from then: so `make` may do nothing else.

    Args:
        kind: all that decides, beside shapes and types of `tensors`, which operators run.

    >>> following("twice", [2], lambda: 4)
    4
    """
    if _again is None:
        return make()
    made: Made = _again(kind, tensors, make)
    return made


@contextmanager
def watched(label: Label, shorten: Shorten | None = None, again: Again | None = None) -> Iterator[None]:
    """Temporarily enter each phase under `label(name)`, on any thread; what is `alike` goes as `shorten` has it, and `following` as `again`.

    >>> seen = []
    >>> def label(name):
    ...     seen.append(name)
    ...     return NOTHING
    >>> with watched(label), phase("forward"):
    ...     pass
    >>> seen
    ['forward']
    """
    global _watching, _shorten, _again
    before = _watching, _shorten, _again
    _watching, _shorten, _again = label, shorten, again
    _contexts.clear()
    try:
        yield
    finally:
        _watching, _shorten, _again = before
