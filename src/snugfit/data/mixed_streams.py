"""Several streams that are trained on together: whose turn it is, is a function of an example's number and of the weights alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snugfit.data.mixture import alternating
from snugfit.data.named_sources import Sources
from snugfit.data.stream import Position, Streamed, StreamedExamples
from snugfit.errors import DataError


class MixedStreams(Streamed):
    """The examples of a run over several streams, by their numbers from the start of the run.

    After k examples a source of weight w has given ⌊k·w/W⌋ or ⌈k·w/W⌉ of them, W being the sum of the weights, as in a mixture of sources that are
    in memory (`mixture.Draws`). Each gives its own examples in their order, and is read anew where it ends, whatever the others do.

    Args:
        sources: with weights.
        streams: of each of them, as long as the run.
    Raises:
        DataError: a source would give no example.
    """

    def __init__(self, sources: Sources, streams: Sequence[StreamedExamples]) -> None:
        assert sources.weights is not None
        self.streams = list(streams)
        self._length = len(self.streams[0])
        scale = math.lcm(*(weight.denominator for weight in sources.weights))
        whole = [int(weight * scale) for weight in sources.weights]
        self._parts = tuple(each // math.gcd(*whole) for each in whole)
        self._turns = alternating(self._parts, min(sum(self._parts), self._length))
        # how often the source of each turn has had one before
        self._before: NDArray[np.int64] = np.empty(len(self._turns), np.int64)
        for number in range(len(self._parts)):
            own = np.flatnonzero(self._turns == number)
            self._before[own] = np.arange(len(own))
        for source, count in zip(sources.each, self.counts(self._length), strict=True):
            if not count:
                raise DataError(
                    f"data.train.{source.name}",
                    f"its weight gives it none of the {self._length:,} examples of the run",
                    "Give it more weight, or the run more updates.",
                )

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number < self._length:
            raise IndexError(number)
        rounds, place = divmod(number, sum(self._parts))
        source = int(self._turns[place])
        return self.streams[source][rounds * self._parts[source] + int(self._before[place])]

    @property
    def largest(self) -> Any:
        return self.streams[0].largest  # they are made by the same settings

    def counts(self, examples: int) -> list[int]:
        """Return how many of the first examples each source gives."""
        rounds, rest = divmod(examples, sum(self._parts))
        own = np.bincount(self._turns[:rest], minlength=len(self._parts)).tolist()
        return [rounds * part + count for part, count in zip(self._parts, own, strict=True)]

    def position(self, examples: int) -> list[Position | None] | None:
        """Return the position of each source, None for one that has given nothing; None where this process has not read so far."""
        counts = self.counts(examples)
        positions = [stream.position(count) for stream, count in zip(self.streams, counts, strict=True)]
        unread = any(count and position is None for count, position in zip(counts, positions, strict=True))
        return None if unread else positions

    def reach(self, examples: int) -> None:
        for stream, count in zip(self.streams, self.counts(examples), strict=True):
            stream.reach(count)

    def go_on(self, examples: int, saved: Any) -> None:
        for stream, count, own in zip(self.streams, self.counts(examples), saved, strict=True):
            if own is not None:
                stream.go_on(count, own)
