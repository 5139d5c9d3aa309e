"""Blocks that stay on the device where the others are streamed: told by arithmetic, from a run in which all of them are streamed.

Beside the slots that streamed blocks come to, each block that stays adds its weights to all that comes after the weights were laid out,
spares what it would take of the host, and one copy in a forward and one in a backward (the views that a streamed block makes of its slot are counted all the same, which is
time of the host alone). A run of few blocks could not tell: of four or five, all would stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from snugfit.core.technique import Stage, Technique
from snugfit.planner.cost.records import Phase, Role
from snugfit.planner.prediction.extrapolate import NotLinear
from snugfit.planner.trace.segments import ROLES, Costs, Segment

_SLOTS = 2
"""Blocks that are streamed at least: with fewer there is a slot less."""

_WAYS = {Phase.FORWARD, Phase.BACKWARD}
_PASSES = {*_WAYS, Phase.LOSS}

Pass = tuple[int, int, int]
"""Update, turn and micro-batch."""


@dataclass(frozen=True)
class Streamed:
    """A streamed block, which all are like: the bytes of its weights, those that it takes of the host, and what one copy of them takes."""

    bytes: int
    host_bytes: int
    copy: Costs


def staying(techniques: Sequence[Technique]) -> int:
    """Return how many blocks stay on the device of those that would be streamed."""
    return sum(each.blocks_that_stay for each in techniques)


def keeping(techniques: Sequence[Technique], blocks: int) -> tuple[Technique, ...]:
    """Return the same techniques with so many blocks that stay on the device."""
    return tuple(each.keeping(blocks) if Stage.STREAM in each.card.stages else each for each in techniques)


def with_staying(
    segments: Sequence[Segment], streamed: Streamed | None, staying: int, blocks: int
) -> list[Segment]:
    """Return the pieces of a run in which some of its blocks stay on the device, from those in which all are streamed.

    Raises:
        NotLinear: the blocks are not alike, or too few are left to be streamed.
    """
    if streamed is None or blocks - staying < _SLOTS:
        raise NotLinear("what is streamed cannot be told apart by blocks")
    weights = np.array([staying * streamed.bytes if role is Role.WEIGHTS else 0 for role in ROLES])
    copies, phases = Counter[Pass](), defaultdict[Pass, set[Phase]](set)
    for each in (each for each in segments if each.key.phase in _PASSES):
        copies[_pass_of(each)] += each.copies
        phases[_pass_of(each)].add(each.key.phase)
    spared = {own: staying * len(ways & _WAYS) for own, ways in phases.items()}
    if any(spared[own] > copies[own] for own in spared):
        raise NotLinear("a pass has fewer copies than blocks that stay")
    first = next((n for n, each in enumerate(segments) if each.key.phase in _PASSES), len(segments))
    return [
        replace(
            each,
            peak=each.peak + weights if place >= first else each.peak,
            host=each.host - staying * streamed.host_bytes if place >= first else each.host,
            costs=each.costs - streamed.copy * (each.copies * spared[_pass_of(each)] / copies[_pass_of(each)])
            if each.copies and _pass_of(each) in spared  # not those that laid them out
            else each.costs,
        )
        for place, each in enumerate(segments)
    ]


def _pass_of(piece: Segment) -> Pass:
    """Return the micro-batch that a piece belongs to."""
    key = piece.key
    return key.update, key.turn, key.micro_batch
