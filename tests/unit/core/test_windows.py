"""The windows of a run against a plain loop that counts them one example at a time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.core.job import Job
from snugfit.core.windows import Cuts, Sizes, grown_over

EPOCHS = 4


def one_by_one(examples: int, sizes: Sizes, tokens: Sequence[Sequence[int]] | None) -> Iterator[list[int]]:
    """Places of each window's examples in the order of its epoch, by a loop over examples that closes a window before it is too full."""
    number = 0
    for epoch in range(EPOCHS):
        window: list[int] = []
        full = 0
        for place in range(examples):
            cost = 1 if tokens is None else tokens[epoch][place]
            if window and full + cost > limit(sizes, number, epoch):
                yield window
                number, window, full = number + 1, [], 0
            window.append(place)
            full += cost
        yield window
        number += 1


def limit(sizes: Sizes, number: int, epoch: int) -> int:
    """The size of a window by its definition: from `start`, a step of `start` more whenever its part of the warm-up is over."""
    if epoch < len(sizes.by_epoch):
        return sizes.by_epoch[epoch]
    if sizes.start is None or number >= sizes.warmup:
        return sizes.last
    grown = (sizes.last - sizes.start) * number / sizes.warmup
    steps = 0
    while (steps + 1) * sizes.start <= grown + 1e-9:
        steps += 1
    return sizes.start * (1 + steps)


@st.composite
def growth(draw: st.DrawFn, least: int = 1) -> Sizes:
    last = draw(st.integers(least + 1, least + 30))
    kind = draw(st.sampled_from(["constant", "warm-up", "by epoch"]))
    if kind == "warm-up":
        return Sizes(last, draw(st.integers(least, last - 1)), draw(st.integers(0, 12)))
    by_epoch = draw(st.lists(st.integers(least, least + 20), max_size=3)) if kind == "by epoch" else []
    return Sizes(last, by_epoch=tuple(by_epoch))


@settings(max_examples=200, deadline=None)
@given(examples=st.integers(1, 40), sizes=growth())
def test_windows_of_examples_are_those_of_a_plain_loop(examples: int, sizes: Sizes) -> None:
    compare(Cuts(examples, sizes), list(one_by_one(examples, sizes, None)))


@settings(max_examples=150, deadline=None)
@given(examples=st.integers(1, 30), sizes=growth(least=9), seed=st.integers(0, 99))
def test_windows_of_tokens_are_those_of_a_plain_loop(examples: int, sizes: Sizes, seed: int) -> None:
    draw = random.Random(seed)
    tokens = [[draw.randint(1, 9) for _ in range(examples)] for _ in range(EPOCHS + 1)]
    sums = [list(itertools.accumulate(each)) for each in tokens]
    cuts = Cuts(examples, sizes, sums.__getitem__)
    compare(cuts, list(one_by_one(examples, sizes, tokens)))
    for window in range(cuts.first(EPOCHS)):
        epoch, start, end = cuts.place(window)
        assert sum(tokens[epoch][start:end]) <= sizes.at(window, epoch)


def compare(cuts: Cuts, expected: list[list[int]]) -> None:
    counts = [len(window) for window in expected]
    places = [cuts.place(number) for number in random.Random(0).sample(range(len(expected)), len(expected))]
    assert sorted(places) == [
        (epoch, window[0], window[-1] + 1) for epoch, window in with_epochs(expected)
    ]  # in whatever order one asks
    assert cuts.first(EPOCHS) == cuts.within(float(EPOCHS)) == len(expected)
    assert cuts.examples_after(len(expected)) == sum(counts)
    for windows in range(1, len(expected) + 1):
        assert cuts.examples_after(windows) == sum(counts[:windows])
        assert cuts.rows(windows) == sorted(set(counts[:windows]))
        assert cuts.largest(windows) == counts.index(max(counts[:windows]))
        assert cuts.epochs_after(windows).is_integer() == (windows in map(cuts.first, range(EPOCHS + 1)))
    passed = [cuts.epochs_after(windows) for windows in range(len(expected) + 1)]
    assert passed == sorted(set(passed))


def with_epochs(windows: list[list[int]]) -> Iterator[tuple[int, list[int]]]:
    epoch = -1
    for window in windows:
        epoch += window[0] == 0
        yield epoch, window


@settings(max_examples=200, deadline=None)
@given(
    examples=st.integers(1, 200),
    last=st.integers(2, 40),
    part=st.floats(0.01, 0.99),
    epochs=st.sampled_from([0.5, 1.0, 2.3, 3.0]),
)
def test_a_warmup_over_a_part_of_the_run_is_that_part_of_the_windows_there_are(
    examples: int, last: int, part: float, epochs: float
) -> None:
    sizes = grown_over(part, epochs, examples, Sizes(last, start=1))
    total = Cuts(examples, sizes).within(epochs)
    assert sizes.warmup >= round(part * total)
    if sizes.warmup:
        fewer = Cuts(examples, Sizes(last, 1, sizes.warmup - 1)).within(epochs)
        assert sizes.warmup - 1 < round(part * fewer)


@pytest.mark.parametrize("epochs", [1, 2, 2.5, 0.3])
def test_growth_that_is_over_at_once_is_no_growth(epochs: float) -> None:
    grown, plain = Cuts(19, Sizes(4, start=1, warmup=0)), Cuts(19, Sizes(4))
    assert [grown.place(window) for window in range(15)] == [plain.place(window) for window in range(15)]
    assert grown.within(epochs) == plain.within(epochs)


def test_the_number_of_updates_is_exact_before_the_first() -> None:
    """By hand: 32 examples in windows of 4, 4, 8, 8 and 8, and 16 of two more epochs' 32 in two windows each."""
    job = Job.of(global_batch=16, start_batch=4, batch_warmup=5, epochs=3)
    cuts = job.cuts(32)
    starts_and_ends = [cuts.place(window)[1:] for window in range(job.total_windows(32))]
    assert [end - start for start, end in starts_and_ends] == [4, 4, 8, 8, 8, 16, 16, 16, 16]
    assert Job.of(global_batch=16, start_batch=4, batch_warmup=5, updates=7).total_windows(32) == 7


def test_sizes_by_epoch_are_of_whole_epochs() -> None:
    job = Job.of(global_batch=16, batch_by_epoch=[4, 8], epochs=3)
    assert job.total_windows(32) == 8 + 4 + 2
    assert [job.cuts(32).windows_in(epoch) for epoch in range(4)] == [8, 4, 2, 2]
