"""Several streams: their examples are those of a plain loop that gives each its turns, wherever one begins to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from snugfit.core.random import derive_seed
from snugfit.data.mixed_streams import MixedStreams
from snugfit.data.named_sources import Sources, sources_of
from snugfit.data.stream import Stream, StreamedExamples
from snugfit.errors import DataError
from tests.oracles import mixture, streams

BUFFER, LENGTH = 4, 90
SIZES = (11, 6, 23)
WEIGHTS = [(3, 1), ("0.1", "0.3", "0.6"), (7,), (1, 1, 1)]


def sources(weights: Sequence[Any]) -> Sources:
    written = {f"s{n}": {"from": f"s{n}.jsonl", "weight": float(weight)} for n, weight in enumerate(weights)}
    made = sources_of(written)
    assert isinstance(made, Sources)
    return made


def rows_of(number: int, other: int = 0) -> range:
    return range(100 * number + other, 100 * number + other + SIZES[number])


def mixed(weights: Sequence[Any], rows: Callable[[int], Iterable[int]] = rows_of) -> MixedStreams:
    each = [
        StreamedExamples(
            Stream(partial(rows, number), BUFFER),
            LENGTH,
            seed=derive_seed(number),
            setting=f"data.train.s{number}",
        )
        for number in range(len(weights))
    ]
    return MixedStreams(sources(weights), each)


def by_hand(weights: Sequence[Any]) -> list[int]:
    parts = [Fraction(str(weight)) for weight in weights]
    turns = mixture.one_epoch([LENGTH] * len(parts), parts, first=True)[:LENGTH]
    own = [
        iter(streams.run(lambda _, number=number: rows_of(number), BUFFER, derive_seed(number), LENGTH))
        for number in range(len(parts))
    ]
    return [next(own[turn]) for turn in turns]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_examples_are_those_of_a_plain_loop_in_whatever_order_they_are_asked_for(
    weights: Sequence[Any],
) -> None:
    examples, expected = mixed(weights), by_hand(weights)
    places = [*range(LENGTH), *np.random.default_rng(0).permutation(LENGTH)[:20].tolist()]
    assert [examples[place] for place in places] == [expected[place] for place in places]
    for count in range(LENGTH + 1):
        given = [
            sum(example // 100 == number for example in expected[:count]) for number in range(len(weights))
        ]
        assert examples.counts(count) == given


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("stop", [1, 2, 37, 89])
def test_whoever_goes_on_reads_what_the_first_would_have_read(weights: Sequence[Any], stop: int) -> None:
    before, expected = mixed(weights), by_hand(weights)
    for place in range(stop):
        before[place]
    position = json.loads(json.dumps(before.position(stop)))
    again = mixed(weights)
    assert again.position(LENGTH) is None, "what has not been read has no position"
    again.go_on(stop, position)
    assert [again[place] for place in range(stop, LENGTH)] == expected[stop:]


def test_a_source_that_gives_other_rows_is_named_and_one_that_gave_none_is_not_asked() -> None:
    before = mixed((7, 1, 1))
    before[0]
    first = before.position(1)
    assert first is not None and [own is None for own in first] == [False, True, True]
    others = partial(rows_of, other=1)
    mixed((7, 1, 1), lambda number: others(number) if number else rows_of(number)).go_on(1, first)
    for place in range(40):
        before[place]
    with pytest.raises(DataError, match=r"data\.train\.s2: .* gave other rows"):
        mixed((7, 1, 1), lambda number: others(number) if number == 2 else rows_of(number)).go_on(
            40, before.position(40)
        )


def test_a_source_that_would_never_come_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.train\.s1: its weight gives it none of the 90 examples"):
        mixed((1000, 1))
