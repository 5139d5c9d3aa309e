"""The allocations of a run of all blocks, from those of runs of few.

What the caching allocator takes of a device depends on the order in which memory is asked for and let go of, which no sum over pieces
tells. So the stream itself is carried on: pieces of blocks that are inserted do what those of the block in the middle do, each with
memory of its own; in pieces that are of no block, such as a step over all parameters, what a longer run has more of is found and
comes as often as blocks are inserted. A third depth tells whether that holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from snugfit.planner.cost.allocator import changes_of
from snugfit.planner.cost.records import Trace
from snugfit.planner.prediction.extrapolate import Axis, NotLinear
from snugfit.planner.trace.segments import Key, keys_of

_NEAR = 2
"""Periods of blocks up to which what a block frees is of one that is so many before or after it, and not of the first or the last ones."""


class Change(NamedTuple):
    """Memory that is allocated, or that is freed: below 0 bytes. It is known by the piece that allocated it, and its number there."""

    size: int
    piece: Key
    number: int


Pieces = dict[Key, list[Change]]
"""The changes of each piece of a run, in order."""


@dataclass(frozen=True)
class Allocations:
    """The stream of one run on one device.

    Args:
        keys: of its pieces, in order.
        pieces: the place among them of each change's piece.
        numbers, sizes: of each change, as `allocator.replay` takes them.
    """

    keys: tuple[Key, ...]
    pieces: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, trace: Trace, device: str, *, arriving: bool = True) -> Allocations:
        """Return the stream of a recorded run; see `allocator.reserved_bytes`."""
        given = [change for change in changes_of(trace, device, arriving) if change[2]]
        events, numbers, sizes = np.array(given, dtype=np.int64).reshape(-1, 3).T
        runs = [(key, sum(1 for _ in ops)) for key, ops in groupby(keys_of(trace.ops))]
        pieces = np.repeat(np.arange(len(runs)), [count for _, count in runs])
        ops = np.searchsorted([op.event for op in trace.ops], events, side="right") - 1
        return cls(tuple(key for key, _ in runs), pieces[np.maximum(ops, 0)], numbers, sizes)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield what `allocator.replay` takes."""
        return zip(self.numbers.tolist(), self.sizes.tolist(), strict=True)

    def by_piece(self) -> Pieces:
        """Return the changes of each piece.

        Raises:
            NotLinear: two pieces have one key.
        """
        if len(set(self.keys)) != len(self.keys):
            raise NotLinear("two pieces of a run have one key")
        made: Pieces = {key: [] for key in self.keys}
        born: dict[int, Change] = {}
        allocated: Counter[Key] = Counter()
        for piece, (number, size) in zip(self.pieces.tolist(), self, strict=True):
            key = self.keys[piece]
            if size > 0:
                born[number] = Change(size, key, allocated[key])
                allocated[key] += 1
                made[key].append(born[number])
            else:
                made[key].append(born[number]._replace(size=size))
        return _in_order(made)


def _in_order(pieces: Pieces) -> Pieces:
    """Return pieces in which what is freed in one go comes in the order in which it was allocated: it leaves the same memory in any, and sets have none."""
    place = {key: number for number, key in enumerate(pieces)}

    def ordered(changes: list[Change]) -> Iterator[Change]:
        for frees, run in groupby(changes, key=lambda change: change.size < 0):
            made = [*run]
            yield from sorted(made, key=lambda each: (place[each.piece], each.number)) if frees else made

    return {key: [*ordered(changes)] for key, changes in pieces.items()}


def flat(pieces: Pieces) -> Iterator[tuple[int, int]]:
    """Yield what `allocator.replay` takes."""
    numbers: dict[tuple[Key, int], int] = {}
    for changes in pieces.values():
        for size, piece, number in changes:
            yield numbers.setdefault((piece, number), len(numbers)), size


def carried_on(base: Pieces, more: Pieces, axis: Axis, order: Sequence[Key]) -> Pieces:
    """Return the changes of a run of `axis.wanted` blocks, from those of `axis.base` and of one period more.

    Args:
        order: the keys of its pieces, as `extrapolate.stretch` tells them.
    Raises:
        NotLinear: the two runs do not tell.
    """
    return _Longer(base, more, axis).pieces(order)


class _Site(NamedTuple):
    """A stretch of the longer run's piece that the shorter one lacks: where it begins, its length, and the numbers of what it allocates."""

    start: int
    length: int
    first: int
    allocated: int


@dataclass(frozen=True)
class _Longer:
    """A run of many blocks, of two of fewer."""

    base: Pieces
    more: Pieces
    axis: Axis
    _known_sites: dict[Key, list[_Site]] = field(default_factory=dict, init=False)
    _known_growth: dict[Key, dict[int, int]] = field(default_factory=dict, init=False)

    def pieces(self, order: Sequence[Key]) -> Pieces:
        made: Pieces = {}
        for key in order:
            source, step = self._source(key)
            if source not in self.more:
                raise NotLinear(f"there is no piece to take for {key}")
            if self.axis.number(key) < 0:
                made[key] = [*self._grown(key, source)]
            else:
                made[key] = [self._moved(change, key, source, step) for change in self.more[source]]
            if any(change.piece not in made for change in made[key]):
                raise NotLinear(f"what {key} frees is allocated nowhere before it")
        return _in_order(made)

    def _source(self, key: Key) -> tuple[Key, int]:
        """Return the longer run's piece that one of all blocks is like, and how many periods on it is, -1 where it is not inserted."""
        axis = self.axis
        place = key.block - axis.start
        beyond = axis.heads + axis.inserted * axis.period
        if place < axis.heads:
            return key, -1
        if place >= beyond:  # or of another list, which comes after them
            return axis.moved(key, (1 - axis.inserted) * axis.period), -1
        step = (place - axis.heads) // axis.period
        return axis.moved(key, -step * axis.period), step

    # ------------------------------------------------------------------ pieces of blocks

    def _moved(self, change: Change, key: Key, source: Key, step: int) -> Change:
        """Return a change of a block's piece as another block has it."""
        size, piece, number = change
        if piece == source:
            return Change(size, key, number)
        if self._place(piece) >= 0:
            near = abs(piece.block - source.block) <= _NEAR * self.axis.period
            moved = self.axis.moved(piece, key.block - source.block) if near else self._named(piece)
            return Change(size, moved, number)
        copy = None
        if step >= 0 and (site := self._site_of(piece, number)) is not None:
            before = self._freed.get((piece, number - site.allocated))
            ascends = before is not None and before[0] == self.axis.moved(source, -self.axis.period)
            copy = self._copy(step, ascends)
        return Change(size, self._named(piece), self._number(piece, number, copy))

    # ------------------------------------------------------------------ pieces of no block

    def _grown(self, key: Key, source: Key) -> Iterator[Change]:
        """Yield the changes of a piece that is of no block: what the longer run has more of as often as blocks are inserted."""
        end = 0
        for site in self._sites(source):
            yield from self._copied(key, source, range(end, site.start))
            end = site.start + site.length
            for step in range(self.axis.inserted):
                yield from self._copied(key, source, range(site.start, end), step)
        yield from self._copied(key, source, range(end, len(self.more[source])))

    def _copied(self, key: Key, source: Key, places: range, step: int | None = None) -> Iterator[Change]:
        """Yield changes of a piece that is of no block, in what is inserted there those of a `step`."""
        for place in places:
            size, piece, number = self.more[source][place]
            name = key if piece == source else self._named(piece)
            if size > 0 or not self._is_inserted(piece, number):
                yield Change(self._size(size, piece), name, self._number(piece, number, step))
                continue
            copies = range(self.axis.inserted) if step is None else [self._turn(source, place, step)]
            for copy in copies:
                if self._place(piece) >= 0:
                    yield Change(size, self.axis.moved(piece, copy * self.axis.period), number)
                else:
                    yield Change(self._size(size, piece), name, self._number(piece, number, copy))

    def _turn(self, source: Key, place: int, step: int) -> int:
        """Return which copy of what is inserted a step frees: the stretches go through them in the order in which they came, or backwards."""
        _, piece, number = self.more[source][place]
        if self._place(piece) >= 0:
            like = self._freed.get((self.axis.moved(piece, -self.axis.period), number))
        else:
            site = self._site_of(piece, number)
            like = None if site is None else self._freed.get((piece, number - site.allocated))
        return self._copy(step, like is not None and like[1] < place)

    def _size(self, size: int, piece: Key) -> int:
        """Return the bytes of what a piece allocated: of a list over all blocks so many more for each that is inserted."""
        if self._place(piece) >= 0:
            return size
        more = (self.axis.inserted - 1) * self._growth(piece).get(abs(size), 0)
        return size + more if size > 0 else size - more

    def _copy(self, step: int, ascends: bool) -> int:
        return step if ascends else self.axis.inserted - 1 - step

    def _named(self, piece: Key) -> Key:
        """Return the key in the run of all blocks that a piece has which is not inserted."""
        axis = self.axis
        if piece.block - axis.start < axis.heads:
            return piece
        return axis.moved(piece, (axis.inserted - 1) * axis.period)

    def _place(self, piece: Key) -> int:
        """Return which block of the longer run a piece is of, -1 for none."""
        place = piece.block - self.axis.start
        return place if 0 <= place < self.axis.base + self.axis.period else -1

    def _number(self, piece: Key, number: int, copy: int | None) -> int:
        """Return the number of an allocation in the run of all blocks; of one in an insertion that of a copy."""
        if self._place(piece) >= 0:
            return number
        more = 0
        for site in self._sites(piece):
            if number < site.first:
                break
            if number < site.first + site.allocated:
                if copy is None:
                    raise NotLinear(f"{piece}, {number} is one of many")
                return more + number + copy * site.allocated
            more += (self.axis.inserted - 1) * site.allocated
        return number + more

    def _site_of(self, piece: Key, number: int) -> _Site | None:
        return next((each for each in self._sites(piece) if 0 <= number - each.first < each.allocated), None)

    def _sites(self, piece: Key) -> list[_Site]:
        if piece not in self._known_sites:
            self._known_sites[piece] = []
            for site in self._insertions(piece):  # of which one may free what those before it have allocated
                self._known_sites[piece].append(site)
        return self._known_sites[piece]

    def _insertions(self, piece: Key) -> Iterator[_Site]:
        """Yield what the longer run has more of in a piece that is of no block.

        Each stretch is like those beside it, so that it may as well be one of those: it is the one that frees what is inserted, or the
        one in the middle.
        """
        grown = {size - more: size for size, more in self._growth(piece).items()}
        short = [int(np.sign(size)) * grown.get(abs(size), abs(size)) for size, *_ in self._shorter(piece)]
        long = [size for size, *_ in self.more[piece]]
        at = place = 0
        while place < len(long):
            if at < len(short) and short[at] == long[place] > 0:
                at, place = at + 1, place + 1
                continue
            after, end = _end_of_frees(short, at), _end_of_frees(long, place)
            freed = self.more[piece][place:end]
            not_inserted = Counter(each.size for each in freed if not self._is_inserted(*each[1:]))
            # all blocks in one go, or as many as in the shorter run and the others elsewhere
            if freed and Counter(short[at:after]) in (not_inserted, Counter(long[place:end])):
                at, place = after, end
                continue
            start, length = self._stretch(piece, long, place, short[at : at + 1])
            first = sum(size > 0 for size in long[:start])
            yield _Site(start, length, first, sum(size > 0 for size in long[start : start + length]))
            place += length
        if at < len(short):
            raise NotLinear(f"a longer run lacks what a shorter one has: {piece}")

    def _stretch(
        self, piece: Key, long: Sequence[int], place: int, following: Sequence[int]
    ) -> tuple[int, int]:
        """Return where a stretch of a piece lies that is inserted up to a place, and its length."""
        back = (self.axis.base - self.axis.heads) // self.axis.period
        for length in range(1, place // (back + 1) + 1):
            end, start = place + length, place - back * length
            if long[end : end + 1] == following and long[start:end] == long[start - length : place]:
                return self._start(piece, long, place, length, start), length
        raise NotLinear(f"what a longer run has more of is not like what comes before it: {place} of {piece}")

    def _start(self, piece: Key, long: Sequence[int], place: int, length: int, middle: int) -> int:
        """Return where a stretch begins, of all places where it may: at most before the first that is freed of what is inserted, behind frees where it can."""
        least = middle
        while least > 0 and long[least - 1] == long[least - 1 + length]:
            least -= 1
        changes = enumerate(self.more[piece][least : place + length], least)
        frees = (each for each, change in changes if change.size < 0 and self._is_inserted(*change[1:]))
        first = min(next(frees, middle), place)
        anew = (start for start in range(first, least, -1) if long[start - 1] < 0 < long[start])
        return next(anew, first)

    def _is_inserted(self, piece: Key, number: int) -> bool:
        """Return whether an allocation of the longer run is one that the run of all blocks has many of."""
        at = self._place(piece)
        if at >= 0:
            return self.axis.heads <= at < self.axis.heads + self.axis.period
        return self._site_of(piece, number) is not None

    def _growth(self, piece: Key) -> dict[int, int]:
        """Return by how much the sizes have grown that the longer run alone has in a piece."""
        if piece not in self._known_growth:
            short, long = (
                {abs(size) for size, *_ in changes} for changes in (self._shorter(piece), self.more[piece])
            )
            if len(short - long) != len(long - short):
                raise NotLinear(f"sizes differ in {piece}")
            pairs = zip(sorted(short - long), sorted(long - short), strict=True)
            self._known_growth[piece] = {size: size - before for before, size in pairs}
        return self._known_growth[piece]

    def _shorter(self, piece: Key) -> list[Change]:
        """Return the shorter run's piece that one of no block of the list is like."""
        shorter = self.axis.moved(piece, -self.axis.period) if self._named(piece) != piece else piece
        if shorter not in self.base:
            raise NotLinear(f"the shorter run has no piece {piece}")
        return self.base[shorter]

    @cached_property
    def _freed(self) -> dict[tuple[Key, int], tuple[Key, int]]:
        """Return where each allocation of the longer run is freed: the piece, and the place there."""
        return {
            (made_in, number): (piece, place)
            for piece, changes in self.more.items()
            for place, (size, made_in, number) in enumerate(changes)
            if size < 0
        }


def _end_of_frees(sizes: Sequence[int], place: int) -> int:
    """Return where what is freed in one go ends; the place itself where nothing is."""
    return next((each for each in range(place, len(sizes)) if sizes[each] > 0), len(sizes))
