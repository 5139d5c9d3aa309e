"""The windows of a run: how much each holds, and where the order of an epoch is cut. Pure functions of the window's number and the epoch."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import sub

from snugfit.units import counted

Sums = Callable[[int], Sequence[int]]
"""From an epoch to the running sum of its examples' tokens, in the order of that epoch."""


@dataclass(frozen=True)
class Sizes:
    """The most that each window of a run holds, in examples or in tokens.

    Args:
        last: of all windows, or of those that follow a growth.
        start: of the first window, from which windows grow in steps of `start`; None for no growth.
        warmup: windows over which they grow.
        by_epoch: of the windows of the first epochs, one for each epoch.

    >>> sizes = Sizes(last=8, start=2, warmup=6)
    >>> [sizes.at(window, epoch=0) for window in range(8)]
    [2, 2, 4, 4, 6, 6, 8, 8]
    """

    last: int
    start: int | None = None
    warmup: int = 0
    by_epoch: tuple[int, ...] = ()

    def at(self, window: int, epoch: int) -> int:
        """Return the size of a window by its number and its epoch, both counted from the start of the run."""
        if epoch < len(self.by_epoch):
            return self.by_epoch[epoch]
        if self.start is None or window >= self.warmup:
            return self.last
        return self.start * (1 + (self.last - self.start) * window // (self.warmup * self.start))

    @property
    def constant(self) -> bool:
        """True where all windows are of one size."""
        return self.start is None and not self.by_epoch

    @property
    def smallest(self) -> int:
        return min(self.last, self.start or self.last, *self.by_epoch)

    def settled(self, window: int, epoch: int) -> bool:
        """Return whether this window and all that follow are of the last size."""
        return epoch >= len(self.by_epoch) and (self.start is None or window >= self.warmup)

    def words(self, unit: str) -> str:
        """Return the sizes in words.

        >>> Sizes(last=256, start=32, warmup=40).words("examples")
        '32 → 256 examples over 40 updates'
        >>> Sizes(last=64, by_epoch=(16, 32)).words("examples")
        '16, 32, then 64 examples by epoch'
        >>> Sizes(last=4096).words("tokens")
        '4,096 tokens'
        """
        if self.by_epoch:
            return f"{', '.join(f'{each:,}' for each in self.by_epoch)}, then {self.last:,} {unit} by epoch"
        if self.start is None:
            return f"{self.last:,} {unit}"
        return f"{self.start:,} → {self.last:,} {unit} over {counted(self.warmup, 'update')}"


class Cuts:
    """The places at which the epochs of a run are cut into windows; the last window of an epoch may be partial.

    Args:
        examples: of an epoch.
        sizes: of windows, in examples; or in tokens, where `sums` is given. No example has more tokens than the smallest of them.

    >>> cuts = Cuts(5, Sizes(last=4, start=1, warmup=3))
    >>> [cuts.place(window) for window in range(5)]
    [(0, 0, 1), (0, 1, 3), (0, 3, 5), (1, 0, 4), (1, 4, 5)]
    """

    def __init__(self, examples: int, sizes: Sizes, sums: Sums | None = None) -> None:
        self.examples, self.sizes = examples, sizes
        self._sums = sums
        self._firsts = [0]
        self._epoch, self._ends = -1, [0]

    def place(self, window: int) -> tuple[int, int, int]:
        """Return the epoch of a window, and where in the order of that epoch it begins and ends."""
        while self._firsts[-1] <= window:
            self._count_next()
        epoch = bisect_right(self._firsts, window) - 1
        place, ends = window - self._firsts[epoch], self.ends(epoch)
        return epoch, ends[place - 1] if place else 0, ends[place]

    def first(self, epoch: int) -> int:
        """Return the number of the first window of an epoch: the windows of all epochs before it."""
        while len(self._firsts) <= epoch:
            self._count_next()
        return self._firsts[epoch]

    def windows_in(self, epoch: int) -> int:
        """Return the windows of an epoch."""
        return self.first(epoch + 1) - self.first(epoch)

    def ends(self, epoch: int) -> list[int]:
        """Return where in the order of an epoch its windows end."""
        if epoch != self._epoch:
            self._epoch, self._ends = epoch, self._cut(epoch)
        return self._ends

    def within(self, epochs: float) -> int:
        """Return the windows of so many epochs, at least one.

        >>> Cuts(9, Sizes(last=4)).within(2.5)
        8
        """
        if self._uniform:
            return max(1, round(epochs * self.windows_in(0)))
        whole = int(epochs)
        part = epochs - whole
        return max(1, self.first(whole) + (round(part * self.windows_in(whole)) if part else 0))

    def epochs_after(self, windows: int) -> float:
        """Return the epochs that are done after so many windows.

        >>> Cuts(5, Sizes(last=4, start=1, warmup=3)).epochs_after(4)
        1.5
        """
        if self._uniform:
            return windows / self._in_first
        epoch, _, _ = self.place(windows)
        return epoch + (windows - self.first(epoch)) / self.windows_in(epoch)

    def rows(self, windows: int) -> list[int]:
        """Return the different numbers of examples that the first windows of the run have, smallest first.

        >>> Cuts(9, Sizes(last=4)).rows(6)
        [1, 4]
        """
        return sorted({rows for rows, _ in self._until_repeated(windows)})

    def largest(self, windows: int) -> int:
        """Return the number of the first window with the most examples of the first ones of the run.

        >>> Cuts(9, Sizes(last=4, start=1, warmup=3)).largest(6)
        4
        """
        _, number = max(self._until_repeated(windows), key=lambda window: window[0], default=(0, 0))
        return number

    def examples_after(self, windows: int) -> int:
        """Return the examples of the first windows of the run."""
        if windows == 0:
            return 0
        epoch, _, end = self.place(windows - 1)
        return epoch * self.examples + end

    @cached_property
    def _uniform(self) -> bool:
        """True where all epochs are cut alike."""
        return self._sums is None and self.sizes.constant

    @cached_property
    def _in_first(self) -> int:
        """Windows of the first epoch."""
        return self.windows_in(0)

    def _repeats(self, epoch: int) -> bool:
        """Return whether all later epochs are cut as this one is."""
        return self._sums is None and self.sizes.settled(self.first(epoch), epoch)

    def _until_repeated(self, windows: int) -> Iterator[tuple[int, int]]:
        """Yield the examples of the first windows of the run, each with its number, until all later epochs are cut alike."""
        epoch = 0
        while (first := self.first(epoch)) < windows:
            ends = self.ends(epoch)[: windows - first]
            yield from zip(map(sub, ends, [0, *ends]), itertools.count(first), strict=False)
            if self._repeats(epoch):
                return
            epoch += 1

    def _count_next(self) -> None:
        """Count the windows of the first epoch whose number is not known."""
        epoch = len(self._firsts) - 1
        count = -(-self.examples // self.sizes.last) if self._repeats(epoch) else len(self.ends(epoch))
        self._firsts.append(self._firsts[epoch] + count)

    def _cut(self, epoch: int) -> list[int]:
        window, end, ends = self._firsts[epoch], 0, list[int]()
        sums = None if self._sums is None else self._sums(epoch)
        while end < self.examples:
            if sums is None and self.sizes.settled(window, epoch):
                size = self.sizes.last
                return [*ends, *range(end + size, self.examples, size), self.examples]
            size = self.sizes.at(window, epoch)
            if sums is None:
                end = min(end + size, self.examples)
            else:
                most = size + (sums[end - 1] if end else 0)
                assert sums[end] <= most, "an example has more tokens than a window"
                end = bisect_right(sums, most, lo=end)
            ends.append(end)
            window += 1
        return ends


def grown_over(part: float, epochs: float, examples: int, sizes: Sizes, sums: Sums | None = None) -> Sizes:
    """Return sizes that grow over a part of the run, whose own length in windows depends on how they grow.

    Args:
        part: of the windows of `epochs`, below 1. The growth takes the fewest windows that are this part of a run or more, in which
            windows grow over as many.

    >>> sizes = grown_over(0.5, epochs=2, examples=16, sizes=Sizes(last=8, start=2))
    >>> sizes.warmup, Cuts(16, sizes).within(2)
    (3, 6)
    """

    def covers(warmup: int) -> bool:
        return warmup >= round(part * Cuts(examples, replace(sizes, warmup=warmup), sums).within(epochs))

    longest = Cuts(examples, replace(sizes, warmup=2**62), sums).within(epochs)  # they stay as at the start
    return replace(sizes, warmup=bisect_left(range(longest), True, key=covers))
