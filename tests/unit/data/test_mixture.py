"""The draws of a mixture: shares that hold at every place, rows without replacement, epochs that end where they are said to."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import pytest
import torch

from snugfit.core.job import Job
from snugfit.data.examples import Examples, FromRows
from snugfit.data.loader import Loader
from snugfit.data.mixture import Draws, alternating, mixed
from snugfit.data.named_sources import Source, Sources, sources_of
from snugfit.data.order import Order, training_order
from snugfit.data.texts.token_rows import JoinedArrays, TokenRows
from snugfit.errors import DataError
from tests.oracles import mixture as oracle

EPOCHS = 3


def mixture(sizes: list[int], weights: list[Fraction], *, first: bool = True) -> Draws:
    named = (Source(f"s{n}", f"s{n}.csv", weight) for n, weight in enumerate(weights))
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    members = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return Draws(Sources(tuple(named), "first_exhausted" if first else "all_exhausted"), members)


def examples(sizes: dict[str, int], stopping: str = "first_exhausted", **weights: float) -> Examples:
    """Rows of files whose rows begin on line 2, each an example with one token more than the one before."""
    files = {
        name: {"from": f"{name}.csv", **({"weight": weights[name]} if weights else {})} for name in sizes
    }
    sources = sources_of(files, stopping)
    assert isinstance(sources, Sources)
    count, rows = sum(sizes.values()), list(range(sum(sizes.values())))
    starts, lines = [], list[int]()
    for size in sizes.values():
        starts.append(len(lines))
        lines += range(2, 2 + size)
    made = [{"input_ids": [1] * (1 + row % 7)} for row in range(count)]
    return Examples(made, str(sources), rows, lines, sources=sources, starts=starts)


def drawn(order: Order, windows: int) -> list[list[tuple[int, int]]]:
    return [order.window(number) for number in range(windows)]


MIXTURES = [
    ([4, 2], [Fraction(3), Fraction(1)]),
    ([5, 5], [Fraction(1), Fraction(1)]),
    ([7], [Fraction(2)]),
    ([10, 1, 3], [Fraction(7, 10), Fraction(1, 10), Fraction(2, 10)]),
    ([3, 40], [Fraction(1), Fraction(997)]),
    *(
        (
            [draw.randint(1, 20) for _ in range(count)],
            [Fraction(draw.randint(1, 30), draw.randint(1, 6)) for _ in range(count)],
        )
        for draw, count in ((random.Random(n), 2 + n % 4) for n in range(10))
    ),
]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("number", range(len(MIXTURES)))
def test_the_draws_are_those_of_a_plain_loop(number: int, first: bool) -> None:
    sizes, weights = MIXTURES[number]
    draws = mixture(sizes, weights, first=first)
    for epoch, expected in enumerate(oracle.run(sizes, weights, EPOCHS, first=first)):
        passes, places = draws.epoch(seed=0, number=epoch, shuffle=False)
        assert list(zip(passes.tolist(), places.tolist(), strict=True)) == [
            (again, sum(sizes[:source]) + row) for source, again, row in expected
        ]
        assert draws.counts == tuple(
            Counter(source for source, _, _ in expected)[own] for own in range(len(sizes))
        )


@pytest.mark.parametrize("number", range(len(MIXTURES)))
def test_at_every_place_a_source_has_given_its_share_rounded_down_or_up(number: int) -> None:
    sizes, weights = MIXTURES[number]
    given = [0] * len(sizes)
    for place, source in enumerate(mixture(sizes, weights, first=False).pattern.tolist(), 1):
        given[source] += 1
        for count, weight in zip(given, weights, strict=True):
            share = place * weight / sum(weights)
            assert math.floor(share) <= count <= math.ceil(share)


def test_an_epoch_ends_with_the_last_row_of_the_first_source_or_of_the_last_one() -> None:
    weights = [Fraction(3), Fraction(1)]
    assert mixture([6, 9], weights).counts == (6, 2)
    assert mixture([6, 9], weights, first=False).counts[1] == 9
    assert mixture([6, 9], weights, first=False).pattern[-1] == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_source_gives_all_its_rows_before_one_comes_again_whatever_an_epoch_is(first: bool) -> None:
    sizes = [9, 4, 6]
    draws = mixture(sizes, [Fraction(5), Fraction(2), Fraction(1)], first=first)
    of_source: list[list[int]] = [[], [], []]
    keys = []
    for epoch in range(7):
        passes, places = draws.epoch(seed=11, number=epoch)
        keys += list(zip(passes.tolist(), places.tolist(), strict=True))
        for source, place in zip(draws.pattern.tolist(), places.tolist(), strict=True):
            of_source[source].append(place)
    assert len(set(keys)) == len(keys), "a row that comes again has another key"
    orders = set()
    for source, size in enumerate(sizes):
        own = set(range(sum(sizes[:source]), sum(sizes[: source + 1])))
        rounds = [of_source[source][start : start + size] for start in range(0, len(of_source[source]), size)]
        assert len(rounds) > 2
        assert all(set(each) == own for each in rounds[:-1])
        assert len(set(rounds[-1])) == len(rounds[-1])
        orders |= {tuple(row - sum(sizes[:source]) for row in each) for each in rounds[:-1] if source == 0}
    assert len(orders) > 1, "each pass has an order of its own"


def test_the_seed_changes_the_rows_and_never_the_shares() -> None:
    draws = mixture([30, 40], [Fraction(2), Fraction(3)])
    one, other = (draws.epoch(seed, 0)[1] for seed in (0, 1))
    assert one.tolist() != other.tolist()
    assert ((one < 30) == (other < 30)).all()
    assert (one == draws.epoch(0, 0)[1]).all()


def test_the_order_of_a_source_is_its_own_whatever_the_others_are() -> None:
    def rows_of_first(others: list[int], weights: list[int]) -> list[int]:
        draws = mixture([8, *others], [Fraction(each) for each in weights], first=False)
        return [place for place in draws.epoch(5, 0)[1].tolist() if place < 8][:8]

    assert rows_of_first([3], [1, 1]) == rows_of_first([20, 4], [3, 1, 2])


def test_a_window_has_each_source_by_its_share_but_for_less_than_two_examples() -> None:
    order = training_order(
        Job.of(global_batch=16, epochs=4, seed=3), examples({"a": 90, "b": 60, "c": 14}, a=5, b=2, c=1)
    )
    whole = [window for window in drawn(order, order.windows) if len(window) == 16]
    assert len(whole) > 20
    for window in whole:
        counts = Counter("a" if place < 90 else "b" if place < 150 else "c" for _, place in window)
        for name, share in (("a", 10), ("b", 4), ("c", 2)):
            assert abs(counts[name] - share) < 2


def test_the_order_is_the_same_from_whatever_window_it_is_asked() -> None:
    data = examples({"a": 13, "b": 7}, a=2, b=3)
    job = Job.of(global_batch=6, epochs=5)
    order = training_order(job, data)
    whole = drawn(order, order.windows)
    for start in reversed(range(order.windows)):
        assert training_order(job, data).window(start) == whole[start]


def test_windows_in_tokens_hold_the_tokens_of_what_is_drawn() -> None:
    data = examples({"a": 20, "b": 11}, "all_exhausted", a=1, b=2)
    order = training_order(Job.of(batch_tokens=23, epochs=3), data)
    lengths = [len(each["input_ids"]) for each in data]
    drawn_places = [place for window in drawn(order, order.windows) for _, place in window]
    expected = [
        place
        for epoch in range(3)
        for place in Draws(data.sources, data.members()).epoch(0, epoch)[1].tolist()
    ]
    assert drawn_places == expected
    for number in range(order.windows):
        window = order.window(number)
        tokens = sum(lengths[place] for _, place in window)
        assert tokens <= 23
        if number + 1 < order.windows and order.cuts.place(number)[0] == order.cuts.place(number + 1)[0]:
            assert tokens + lengths[order.window(number + 1)[0][1]] > 23
    mean = sum(lengths[place] for place in expected[: order.examples]) / order.examples
    assert order.mean_length() == pytest.approx(mean)


def test_what_is_told_of_each_source_is_counted_over_the_run() -> None:
    data = examples({"a": 13, "b": 7}, a=2, b=3)
    loader = Loader(data, training_order(Job.of(global_batch=6, updates=9), data))
    places = [place for number in range(9) for _, place in loader.order.window(number)]
    counts = [sum(place < 13 for place in places), sum(place >= 13 for place in places)]
    assert loader.by_source(9) == [
        {"name": "a", "rows": 13, "share": counts[0] / len(places), "epochs": counts[0] / 13},
        {"name": "b", "rows": 7, "share": counts[1] / len(places), "epochs": counts[1] / 7},
    ]


def test_sources_without_weights_are_one_data_set_of_which_each_row_comes_once_an_epoch() -> None:
    data = examples({"a": 13, "b": 7})
    assert mixed(data) is None
    order, plain = (training_order(Job.of(global_batch=6), each) for each in (data, list(range(20))))
    assert drawn(order, order.windows) == drawn(plain, plain.windows)
    shares = [each["share"] for each in Loader(data, order).by_source(order.windows)]
    assert shares == [0.65, 0.35]


def test_a_source_without_a_row_is_refused_by_its_name() -> None:
    with pytest.raises(DataError, match=r"data\.train\.b: no usable row of b\.csv is left"):
        mixed(examples({"a": 3, "b": 0}, a=1, b=1))


def test_a_source_whose_weight_gives_no_example_of_an_epoch_is_refused_by_its_name() -> None:
    sizes = {"a": 9, "b": 40}
    with pytest.raises(
        DataError, match=r"data\.train\.b: its weight gives it none of the 9 examples of an epoch"
    ):
        mixed(examples(sizes, a=1, b=0.001))
    every = mixed(examples(sizes, "all_exhausted", a=1, b=0.001))
    assert every is not None and min(every.counts) >= 40


def test_a_part_of_the_examples_goes_on_knowing_its_sources_and_their_lines() -> None:
    data = examples({"a": 4, "b": 3}, a=1, b=1).at([1, 3, 4, 6])
    assert data.numbers == [0, 0, 1, 1]
    assert [own.tolist() for own in data.members()] == [[0, 1], [2, 3]]
    assert [data.origin(place) for place in range(4)] == ["a.csv:3", "a.csv:5", "b.csv:2", "b.csv:4"]
    draws = mixed(FromRows(FromRows(data)))  # type: ignore[arg-type]
    assert draws is not None
    assert draws.sizes == (2, 2)


def test_a_window_larger_than_the_data_set_is_rehearsed_as_large_as_it_is() -> None:
    data = examples({"a": 2, "b": 30}, "all_exhausted", a=15, b=1)
    order = training_order(Job.of(global_batch=64), data)
    batch, exact = Loader(data, order, lambda rows: {"rows": torch.zeros(len(rows))}).worst_window()
    assert exact
    assert len(batch.ids) == 64 > len(data)


def test_arrays_of_parts_are_read_where_they_are() -> None:
    parts = [
        TokenRows.of([{"input_ids": [row] * (1 + row)} for row in range(start, start + count)])
        for start, count in ((0, 3), (10, 2))
    ]
    joined = JoinedArrays(parts)
    assert [each["input_ids"][0] for each in joined] == [0, 1, 2, 10, 11]
    some = joined.at([4, 1]).at([1, 0, 0])
    assert [each["input_ids"][0] for each in some] == [1, 11, 11]
    assert some.token_counts() == [2, 12, 12]
    whole = TokenRows.joined(parts)
    assert list(whole) == list(joined)
    assert whole.token_counts() == joined.token_counts()


def test_weights_of_many_digits_need_no_whole_period() -> None:
    parts = (333_333_333, 666_666_667)
    turns = alternating(parts, 1000).tolist()
    assert turns.count(0) == 333
    sizes = [50, 60]
    draws = mixture(sizes, [Fraction(each) for each in parts])
    assert draws.counts[1] == 60
