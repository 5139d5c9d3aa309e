"""The way from runs of few blocks, or of few micro-batches, to one of many: each piece of the run grows linearly.

The peak of a run does not: which piece has it changes with the depth. So every piece is carried on by itself, the first and the last
ones at their own places, and those that are inserted in between lie on the line between their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from snugfit.planner.trace.segments import Key, Segment


class NotLinear(Exception):
    """The pieces of two runs do not go together, so that a longer one cannot be told from them."""


@dataclass(frozen=True)
class Axis:
    """The dimension that a run has more of: blocks, or micro-batches.

    Args:
        along: the entry of a key that counts it.
        base: how many the shorter run has, at least two periods; the longer one has a period more.
        wanted: how many the run has that is asked for, some periods more than the base.
        period: after how many the same comes again.
        start: the number of the first one.
        irregular: how many of the first ones are of other kinds; what is inserted has two periods between.
    """

    along: Literal["block", "micro_batch"]
    base: int
    wanted: int
    period: int = 1
    start: int = 0
    irregular: int = 0

    @property
    def heads(self) -> int:
        """Return how many of the base lie before those that are inserted: half of the blocks, or more, and all micro-batches but the last."""
        if self.along == "micro_batch":
            return self.base - 1
        half = self.base - self.base // self.period // 2 * self.period
        return max(half, self.irregular + 2 * self.period)

    @property
    def inserted(self) -> int:
        """Return how many periods the run has more than the base."""
        return (self.wanted - self.base) // self.period

    def number(self, key: Key) -> int:
        """Return which one a piece belongs to, from 0; below 0 for none of them."""
        place: int = getattr(key, self.along)
        within = self.start <= place < self.start + self.wanted
        return place - self.start if within else -1

    def moved(self, key: Key, by: int) -> Key:
        """Return the key of the piece so many further on."""
        return key._replace(**{self.along: getattr(key, self.along) + by})


def stretch(base: Sequence[Segment], more: Sequence[Segment], axis: Axis) -> list[Segment]:
    """Return the pieces of a run of `axis.wanted`, from those of `axis.base` and of one period more.

    Raises:
        NotLinear: the two runs are not of the same pieces.
    """
    base = [_renumbered(piece, axis, axis.base) for piece in base]
    more = [_renumbered(piece, axis, axis.base + axis.period) for piece in more]
    tail = axis.heads + axis.period  # of the longer run
    own = {piece.key: piece for piece in base}

    def counterpart(key: Key) -> Segment:
        segment = own.get(key if axis.number(key) < tail else axis.moved(key, -axis.period))
        if segment is None:
            raise NotLinear(f"a run of one more {axis.along} has a piece that the other one lacks: {key}")
        return segment

    ends = [piece for piece in more if not axis.heads <= axis.number(piece.key) < tail]
    if len(own) != len(base) or len(ends) != len(base):
        raise NotLinear(
            f"a run of one more {axis.along} has {len(ends)} pieces at its ends, the other one {len(base)}"
        )
    grown = {piece.key: _carried(counterpart(piece.key), piece, axis.inserted) for piece in ends}
    longer = {piece.key: piece for piece in more}
    segments: list[Segment] = []
    for inside, run in groupby(more, key=lambda piece: axis.heads <= axis.number(piece.key) < tail):
        if inside:
            segments += _between(list(run), grown, longer, axis)
        else:
            segments += [_at_its_place(grown[piece.key], axis, tail) for piece in run]
    return segments


def _renumbered(piece: Segment, axis: Axis, count: int) -> Segment:
    """Return a piece of a run of `count`; of another list that comes after them, such as a decoder's, with its number in the long run."""
    if getattr(piece.key, axis.along) < axis.start + count:
        return piece
    return replace(piece, key=axis.moved(piece.key, axis.wanted - count))


def _between(
    middle: list[Segment], grown: dict[Key, Segment], longer: dict[Key, Segment], axis: Axis
) -> Iterator[Segment]:
    """Yield the pieces that are inserted in the place of a period of the longer run, in the order of the run."""
    steps = range(axis.inserted)
    single = axis.along == "block" and axis.base - axis.heads == axis.period
    descends = axis.number(middle[0].key) > axis.number(middle[-1].key) or _comes_down(middle[0], grown, axis)
    for step in reversed(steps) if descends else steps:
        for piece in middle:
            key = axis.moved(piece.key, -axis.period)
            before, after = grown.get(key), grown.get(axis.moved(piece.key, axis.period))
            if before is None:
                raise NotLinear(f"there is nothing like it before a {axis.along} in the middle: {piece.key}")
            if piece.names != before.names:
                raise NotLinear(
                    f"a {axis.along} in the middle does something else than the one before it: {piece.key}"
                )
            share = (step + 1) / (axis.inserted + 1)
            # the last one is unlike: what lies between two
            if single or after is None or after.names != piece.names:
                after = _carried(longer[key], piece, axis.inserted + 1, before)
            yield replace(
                piece,
                key=axis.moved(piece.key, step * axis.period),
                peak=before.peak + ((after.peak - before.peak) * share).round().astype(before.peak.dtype),
                host=before.host + round((after.host - before.host) * share),
                costs=before.costs + (after.costs - before.costs) * share,
                flops=before.flops + round((after.flops - before.flops) * share),
            )


def _comes_down(piece: Segment, grown: dict[Key, Segment], axis: Axis) -> bool:
    """Return whether a pass goes from the last block to the first: a backward does."""
    order = list(grown)
    before, after = axis.moved(piece.key, -axis.period), axis.moved(piece.key, axis.period)
    return before in grown and after in grown and order.index(before) > order.index(after)


def _carried(one: Segment, other: Segment, times: int, start: Segment | None = None) -> Segment:
    """Carry on from a piece to another one, `times` as far; from `start` on, by default the first of them."""
    start = start or one
    return replace(
        other,
        peak=start.peak + (other.peak - one.peak) * times,
        host=start.host + (other.host - one.host) * times,
        costs=start.costs + (other.costs - one.costs) * times,
        flops=start.flops + (other.flops - one.flops) * times,
    )


def _at_its_place(piece: Segment, axis: Axis, tail: int) -> Segment:
    beyond = axis.number(piece.key) >= tail
    return replace(piece, key=axis.moved(piece.key, (axis.inserted - 1) * axis.period)) if beyond else piece
