"""What the step is doing now, for whoever watches: the planner's recorder, a profiler. Costs nothing where nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Label = Callable[[str], AbstractContextManager[object]]

_watching: Label | None = None
_NOTHING = nullcontext()


def phase(name: str) -> AbstractContextManager[object]:
    """A context around a part of the step: data, a pass over the micro-batches, in it forward, loss, backward, unscale, adjust, optimizer, techniques, evaluation, save."""
    return _NOTHING if _watching is None else _watching(name)


@contextmanager
def watched(label: Label) -> Iterator[None]:
    """Within, each phase is entered under `label(name)`, on any thread.

    >>> seen = []
    >>> def label(name):
    ...     seen.append(name)
    ...     return nullcontext()
    >>> with watched(label), phase("forward"):
    ...     pass
    >>> seen
    ['forward']
    """
    global _watching
    before, _watching = _watching, label
    try:
        yield
    finally:
        _watching = before
