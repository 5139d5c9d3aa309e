"""Sequences of which each value is made when it is asked for."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

A = TypeVar("A")
B = TypeVar("B")


class LazySequence(Sequence[B]):
    """A sequence of which each value is made when it is asked for."""

    def value(self, place: int) -> B:
        """Return the value at a place that there is."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> B: ...
    @overload
    def __getitem__(self, place: slice) -> list[B]: ...
    def __getitem__(self, place: int | slice) -> B | list[B]:
        if isinstance(place, slice):
            return [self.value(each) for each in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.value(place % len(self))

    def __iter__(self) -> Iterator[B]:
        return map(self.value, range(len(self)))


class Made(LazySequence[B], Generic[A, B]):
    """Values that a function makes of the values of a sequence.

    >>> list(Made([3, 1], str)), Made([3, 1], str)[0:1]
    (['3', '1'], ['3'])
    """

    def __init__(self, values: Sequence[A], make: Callable[[A], B]) -> None:
        self._values, self._make = values, make

    def __len__(self) -> int:
        return len(self._values)

    def value(self, place: int) -> B:
        return self._make(self._values[place])


class Chained(LazySequence[B]):
    """Sequences one after the other.

    >>> list(Chained([[1, 2], [], [3]]))
    [1, 2, 3]
    """

    def __init__(self, parts: Sequence[Sequence[B]]) -> None:
        self._parts = list(parts)
        self._starts = list(itertools.accumulate(map(len, self._parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def value(self, place: int) -> B:
        part = bisect_right(self._starts, place) - 1
        return self._parts[part][place - self._starts[part]]
