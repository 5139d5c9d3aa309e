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
    def tail(self) -> int:
        """Return the place of the longer run's first one behind those that the base lacks."""
        return self.heads + self.period

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


def stretch(base: Sequence[Segment], more: Sequence[Segment], *axes: Axis) -> list[Segment]:
    """Return the pieces of a run of `wanted` on each axis, from those of `base` and of one period more.

    Args:
        axes: in the order of the model where they are several lists of blocks, which grow by as many periods each.
    Raises:
        NotLinear: the two runs are not of the same pieces.
    """
    (inserted,) = {axis.inserted for axis in axes}
    along = axes[0].along
    base = [_renumbered(piece, axes, 0) for piece in base]
    more = [_renumbered(piece, axes, 1) for piece in more]
    own = {piece.key: piece for piece in base}

    def axis_of(key: Key) -> Axis | None:
        return next((axis for axis in axes if axis.number(key) >= 0), None)

    def inside(piece: Segment) -> Axis | None:
        """Return the axis on which a piece of the longer run is of a period that the shorter one lacks."""
        axis = axis_of(piece.key)
        return axis if axis is not None and axis.heads <= axis.number(piece.key) < axis.tail else None

    def counterpart(key: Key) -> Segment:
        axis = axis_of(key)
        moved = axis is not None and axis.number(key) >= axis.tail
        segment = own.get(axis.moved(key, -axis.period) if axis is not None and moved else key)
        if segment is None:
            raise NotLinear(f"a run of one more {along} has a piece that the other one lacks: {key}")
        return segment

    ends = [piece for piece in more if inside(piece) is None]
    if len(own) != len(base) or len(ends) != len(base):
        raise NotLinear(
            f"a run of one more {along} has {len(ends)} pieces at its ends, the other one {len(base)}"
        )
    grown = {piece.key: _carried(counterpart(piece.key), piece, inserted) for piece in ends}
    longer = {piece.key: piece for piece in more}
    segments: list[Segment] = []
    for axis, run in groupby(more, key=inside):
        if axis is not None:
            segments += _between(list(run), grown, longer, axis)
        else:
            segments += [_at_its_place(grown[piece.key], axis_of(piece.key)) for piece in run]
    return segments


def _renumbered(piece: Segment, axes: Sequence[Axis], periods: int) -> Segment:
    """Return a piece of a run of so many periods beyond the base; of a list that comes after another one, such as a decoder's, with its number in the long run."""
    key = piece.key
    for axis in axes:
        count = axis.base + periods * axis.period
        if getattr(key, axis.along) >= axis.start + count:
            key = axis.moved(key, axis.wanted - count)
    return piece if key is piece.key else replace(piece, key=key)


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


def _at_its_place(piece: Segment, axis: Axis | None) -> Segment:
    if axis is None or axis.number(piece.key) < axis.tail:
        return piece
    return replace(piece, key=axis.moved(piece.key, (axis.inserted - 1) * axis.period))
