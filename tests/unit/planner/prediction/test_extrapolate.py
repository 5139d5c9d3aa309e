from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from snugfit.planner.cost.records import Phase
from snugfit.planner.prediction.extrapolate import Axis, NotLinear, stretch
from snugfit.planner.trace.segments import ROLES, Key, Segment


def piece(phase: Phase, block: int, size: int, *, micro_batch: int = 0, names: int = 0) -> Segment:
    """A piece of `size` bytes, whose costs, host bytes and FLOPs are multiples of it."""
    peak = np.zeros(len(ROLES), dtype=np.int64)
    peak[0] = size
    costs = np.array([size / 10, 0.0, 0.0, 0.0])
    return Segment(Key(0, phase, 0, micro_batch, 0, block), peak, 2 * size, "", "", costs, 3 * size, names)


def step(
    depth: int, *, period: int = 1, start: int = 0, micro_batches: int = 1, other: int = -1
) -> list[Segment]:
    """A forward through `depth` blocks, each of which leaves 10 bytes, every `period`-th 5 more, and a backward that takes them
    away; weights are 100 bytes a block; before and after it pieces of none. `other` names a block that does something else."""
    found = []
    sizes = [10 + 5 * (block % period == 0) for block in range(depth)]
    for number in range(micro_batches):
        kept = 100 * depth + 7 * number
        found.append(piece(Phase.FORWARD, -1, kept, micro_batch=number))
        for block, size in enumerate(sizes):
            kept += size
            kind = 99 if block == other else block % period
            found.append(piece(Phase.FORWARD, start + block, kept, micro_batch=number, names=kind))
        found.append(piece(Phase.LOSS, -1, kept + 3, micro_batch=number))
        for block in reversed(range(depth)):
            found.append(piece(Phase.BACKWARD, start + block, kept, micro_batch=number, names=block % period))
            kept -= sizes[block]
    found.append(piece(Phase.OPTIMIZER, -1, 300 * depth))
    return found


def told(pieces: Sequence[Segment]) -> list[tuple[Key, int, int, float, int]]:
    return [(each.key, each.bytes, each.host, round(float(each.costs[0]), 6), each.flops) for each in pieces]


@pytest.mark.parametrize(
    ("base", "wanted", "period", "start"),
    [(3, 17, 1, 0), (4, 6, 1, 0), (4, 17, 1, 0), (4, 9, 1, 3), (6, 16, 2, 0), (8, 16, 2, 0), (9, 21, 2, 1)],
)
def test_a_deep_run_is_told_by_two_short_ones(base: int, wanted: int, period: int, start: int) -> None:
    short, longer, deep = (step(each, period=period, start=start) for each in (base, base + period, wanted))
    assert told(stretch(short, longer, Axis("block", base, wanted, period, start))) == told(deep)


def beside_a_head(pieces: Sequence[Segment]) -> list[Segment]:
    """Pieces in which the backward of the last block takes 1,000 times as long, as it does what it does on the tensors of what comes after it."""
    last = max(each.key.block for each in pieces)
    return [
        replace(each, costs=1000 * each.costs)
        if each.key.phase is Phase.BACKWARD and each.key.block == last
        else each
        for each in pieces
    ]


@pytest.mark.parametrize(("base", "period"), [(3, 1), (4, 1), (6, 2)])
def test_a_last_block_beside_a_head_tells_nothing_of_those_before_it(base: int, period: int) -> None:
    short, longer, deep = (beside_a_head(step(each, period=period)) for each in (base, base + period, 18))
    assert told(stretch(short, longer, Axis("block", base, 18, period))) == told(deep)


@pytest.mark.parametrize(
    ("irregular", "period", "more"), [(1, 1, 3), (4, 1, 3), (4, 1, 4), (5, 2, 6), (7, 2, 8)]
)
def test_first_blocks_of_other_kinds_tell_nothing_of_those_behind_them(
    irregular: int, period: int, more: int
) -> None:
    """They do the same operators, which take 1,000 times as long."""

    def made(depth: int) -> list[Segment]:
        return [
            replace(each, costs=1000 * each.costs) if 0 <= each.key.block < irregular else each
            for each in step(depth, period=period)
        ]

    base, wanted = irregular + more, irregular + more + 6 * period
    found = stretch(made(base), made(base + period), Axis("block", base, wanted, period, 0, irregular))
    assert told(found) == told(made(wanted))


def test_many_micro_batches_are_told_by_two_and_three() -> None:
    two, three, nine = (step(2, micro_batches=each) for each in (2, 3, 9))
    assert told(stretch(two, three, Axis("micro_batch", 2, 9))) == told(nine)


def with_a_step(pieces: Sequence[Segment]) -> list[Segment]:
    """Pieces whose last backwards do something else, which takes 1,000 bytes."""
    last = max(each.key.micro_batch for each in pieces)
    return [
        piece(Phase.BACKWARD, each.key.block, each.bytes + 1000, micro_batch=last, names=-1)
        if each.key.phase is Phase.BACKWARD and each.key.micro_batch == last
        else each
        for each in pieces
    ]


def test_a_last_micro_batch_that_is_like_no_other_tells_nothing_of_those_before_it() -> None:
    three, four, nine = (with_a_step(step(2, micro_batches=each)) for each in (3, 4, 9))
    assert told(stretch(three, four, Axis("micro_batch", 3, 9))) == told(nine)


def with_a_late_start(pieces: Sequence[Segment]) -> list[Segment]:
    """Pieces of which those of the second micro-batch do something else than those that follow."""
    return [
        piece(each.key.phase, each.key.block, each.bytes + 5, micro_batch=1, names=-1)
        if each.key.micro_batch == 1
        else each
        for each in pieces
    ]


def test_where_the_second_micro_batch_is_like_no_other_four_and_five_tell_of_many() -> None:
    three, four, five, nine = (with_a_late_start(step(2, micro_batches=each)) for each in (3, 4, 5, 9))
    with pytest.raises(NotLinear, match="does something else"):
        stretch(three, four, Axis("micro_batch", 3, 9))
    assert told(stretch(four, five, Axis("micro_batch", 4, 9))) == told(nine)


def test_depth_and_micro_batches_are_told_one_after_the_other() -> None:
    def deep(micro_batches: int) -> list[Segment]:
        short, longer = (step(each, micro_batches=micro_batches) for each in (4, 5))
        return stretch(short, longer, Axis("block", 4, 12))

    found = stretch(deep(2), deep(3), Axis("micro_batch", 2, 6))
    assert told(found) == told(step(12, micro_batches=6))


def with_another_stack(encoder: int, decoder: int) -> list[Segment]:
    """A forward through two lists of blocks that are unlike and a backward back through both, each of which holds what the other one leaves."""
    kept, found = 100 * encoder + 70 * decoder, []
    blocks = [10] * encoder + [3] * decoder
    for number, size in enumerate(blocks):
        kept += size
        found.append(piece(Phase.FORWARD, number, kept, names=size))
    found.append(piece(Phase.LOSS, -1, kept))
    for number, size in reversed([*enumerate(blocks)]):
        found.append(piece(Phase.BACKWARD, number, kept, names=size))
        kept -= size
    return found


@pytest.mark.parametrize(("encoder", "decoder", "steps"), [(20, 20, (1, 1)), (20, 36, (1, 2))])
def test_two_lists_that_grow_in_step_are_told_by_two_runs_at_once(
    encoder: int, decoder: int, steps: tuple[int, int]
) -> None:
    """Of a list whose steps are longer, more blocks are inserted."""
    base = encoder - 16 * steps[0], decoder - 16 * steps[1]
    short, longer = (
        with_another_stack(*(n + by * step for n, step in zip(base, steps, strict=True))) for by in (0, 1)
    )
    axes = (
        Axis("block", base[0], encoder, steps[0]),
        Axis("block", base[1], decoder, steps[1], start=encoder),
    )
    assert told(stretch(short, longer, *axes)) == told(with_another_stack(encoder, decoder))


def test_of_no_more_than_the_longer_run_it_is_the_longer_run() -> None:
    assert told(stretch(step(4), step(5), Axis("block", 4, 5))) == told(step(5))


def test_the_first_blocks_beyond_whole_periods_stay_where_they_are() -> None:
    axis = Axis("block", base=9, wanted=21, period=2)
    assert (axis.heads, axis.inserted) == (5, 6)
    assert [axis.number(Key(0, Phase.FORWARD, 0, 0, 0, block)) for block in (-1, 0, 20, 21)] == [
        -1,
        0,
        20,
        -1,
    ]


def test_a_piece_that_one_run_lacks_is_not_carried_on() -> None:
    longer = [each for each in step(5) if each.key.phase is not Phase.LOSS]
    with pytest.raises(NotLinear, match="has 10 pieces at its ends, the other one 11"):
        stretch(step(4), longer, Axis("block", 4, 8))


def test_a_piece_of_another_name_is_not_carried_on() -> None:
    longer = [
        each if each.key.phase is not Phase.LOSS else piece(Phase.EVALUATION, -1, each.bytes)
        for each in step(5)
    ]
    with pytest.raises(NotLinear, match="a piece that the other one lacks"):
        stretch(step(4), longer, Axis("block", 4, 8))


def test_a_block_in_the_middle_that_does_something_else_is_not_carried_on() -> None:
    with pytest.raises(NotLinear, match="does something else"):
        stretch(step(4), step(5, other=2), Axis("block", 4, 8))
