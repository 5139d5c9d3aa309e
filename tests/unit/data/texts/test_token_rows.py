"""Examples in arrays: what is asked for is what was put in, whatever part is looked at."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.data.examples import Examples
from snugfit.data.sizes import largest, token_counts
from snugfit.data.texts.spooled_numbers import small
from snugfit.data.texts.token_rows import TokenBlocks, TokenRows, TokenWriter, mapped_array

NUMBERS = st.one_of(st.integers(0, 200), st.integers(-100, 70_000), st.integers(0, 2**40))


@st.composite
def examples(draw: Any) -> list[dict[str, Any]]:
    made = []
    for ids in draw(st.lists(st.lists(NUMBERS, max_size=9), max_size=12)):
        labels = draw(st.lists(st.just(-100) | NUMBERS, min_size=len(ids), max_size=len(ids)))
        made.append({"input_ids": ids, "labels": labels, "score": draw(st.floats(0, 1))})
    return made


def test_windows_in_tokens_are_cut_by_the_tokens_of_examples_in_arrays() -> None:
    made = [{"input_ids": list(range(count)), "labels": [0] * count} for count in (3, 1, 4)]
    rows = TokenRows.of(made)
    assert token_counts(Examples(rows, "a.txt", range(3))) == token_counts(made) == [3, 1, 4]
    assert token_counts(TokenBlocks(rows, 3)) == [3, 3, 2]
    pairs = TokenRows.of([{"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3]]}], sequences=2)
    assert token_counts(pairs) == [3]


@settings(max_examples=60, deadline=None)
@given(made=examples(), data=st.data())
def test_examples_in_arrays_are_those_that_were_put_in(made: list[dict[str, Any]], data: Any) -> None:
    rows = TokenRows.of(made)
    assert list(rows) == [rows[place] for place in range(len(rows))] == rows[:] == made
    assert pickle.loads(pickle.dumps(rows))[:] == made
    places = data.draw(st.lists(st.integers(0, len(made) - 1), max_size=9)) if made else []
    part = rows.at(places)
    assert list(part) == [made[place] for place in places]
    assert part.lengths().tolist() == [len(made[place]["input_ids"]) for place in places]
    assert part.sizes() == [2 * len(made[place]["input_ids"]) + 1 for place in places]
    assert part.count(7) == sum(made[place]["input_ids"].count(7) for place in places)
    again = part.at(range(len(places))[::-1]).with_values(more=range(len(places)))
    assert [each["more"] for each in again] == list(range(len(places)))
    assert [each["score"] for each in again] == [made[place]["score"] for place in places[::-1]]


def test_an_example_of_two_sequences_has_both() -> None:
    made = [
        {"input_ids": [[1, 2], [3]], "labels": [[-100, 2], [3]], "desirable": True},
        {"input_ids": [[4], [5, 6, 7]], "labels": [[4], [5, 6, 7]], "desirable": False},
    ]
    rows = TokenRows.of(made, sequences=2)
    assert list(rows) == made
    assert rows[1]["desirable"] is False
    assert list(rows.at([1])) == made[1:] and rows.at([1]).lengths().tolist() == [4]


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=6),
    size=st.integers(1, 8),
    order=st.randoms(),
)
def test_blocks_are_the_tokens_of_the_texts_in_their_order(texts: Any, size: int, order: Any) -> None:
    places = list(range(len(texts)))
    order.shuffle(places)
    stream = [token for place in places for token in texts[place]]
    expected = [stream[start : start + size] for start in range(0, len(stream), size)]
    expected = [block for place, block in enumerate(expected) if len(stream) - place * size > 1]
    blocks = TokenBlocks(TokenRows.of({"input_ids": text} for text in texts).at(places), size)
    assert [block["input_ids"] for block in blocks] == [block["labels"] for block in blocks] == expected
    assert blocks.sizes() == [3 * len(block) for block in expected]
    half = range(0, len(blocks), 2)
    assert [block["input_ids"] for block in blocks.at(half)] == [expected[place] for place in half]
    starts = [at for at, place in enumerate(places) for _ in texts[place]]
    assert [blocks.text_of(place) for place in range(len(blocks))] == starts[::size][: len(blocks)]


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 9), max_size=7), max_size=6),
    size=st.integers(1, 8),
    order=st.randoms(),
)
def test_texts_that_stay_apart_are_cut_each_by_itself(texts: Any, size: int, order: Any) -> None:
    places = list(range(len(texts)))
    order.shuffle(places)
    expected = [
        (at, texts[place][start : start + size])
        for at, place in enumerate(places)
        for start in range(0, len(texts[place]), size)
        if len(texts[place][start : start + size]) > 1
    ]
    blocks, numbers = TokenRows.of({"input_ids": text} for text in texts).at(places).cut(size)
    assert [block["input_ids"] for block in blocks] == [own for _, own in expected]
    assert [block["labels"] for block in blocks] == [own for _, own in expected]
    assert all(block["attention_mask"] == [1] * len(block["labels"]) for block in blocks)
    assert numbers.tolist() == [at for at, _ in expected]
    assert blocks.token_counts() == [len(own) for _, own in expected]


def test_parts_of_an_example_that_is_taken_in_pieces_are_one_list() -> None:
    writer = TokenWriter()
    for piece in ([1, 2], [], [3]):
        writer.extend({"input_ids": piece})
    writer.end()
    writer.end()
    writer.add_all({"input_ids": [[4], [5, 6]]})
    assert [each["input_ids"] for each in writer.rows()] == [[1, 2, 3], [], [4], [5, 6]]


def test_many_examples_become_arrays_on_the_way_and_keep_their_order() -> None:
    writer = TokenWriter()
    for start in range(0, 300_000, 1000):
        writer.add({"input_ids": list(range(start, start + 1000))})
    rows = writer.rows()
    assert rows[0]["input_ids"] == list(range(1000)) and rows[-1]["input_ids"][-1] == 299_999
    assert rows.lists["input_ids"].dtype == np.int32


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [([0, 255], "u1"), ([0, 256], "u2"), ([-1, 255], "i2"), ([0, 65_536], "i4"), ([-(2**31) - 1, 0], "i8")],
)
def test_numbers_take_no_more_bytes_than_they_need(numbers: list[int], kind: str) -> None:
    array = small(np.array(numbers))
    assert array.dtype == np.dtype(kind) and array.tolist() == numbers


def test_a_mask_of_ones_takes_no_memory() -> None:
    rows = TokenRows.of({"attention_mask": [1] * 1000} for _ in range(1000))
    assert rows.lists["attention_mask"].strides == (0,)
    assert rows[999]["attention_mask"] == [1] * 1000


def test_what_is_mapped_is_sent_as_its_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(100_000, dtype=np.uint16).tofile(path)
    rows = TokenRows({"input_ids": mapped_array(str(path), "<u2", 200, (50_000,))}, np.array([10, 50_000]))
    sent = pickle.dumps(rows)
    assert len(sent) < 2000
    assert pickle.loads(sent)[0]["input_ids"] == rows[0]["input_ids"] == list(range(100, 110))


def test_the_largest_examples_are_found_by_their_lengths() -> None:
    made = [{"input_ids": [1] * length, "labels": 0} for length in (3, 9, 1, 9, 5)]
    in_arrays = Examples(TokenRows.of(made), "a.csv", range(5))
    assert largest(in_arrays, 3) == largest(made, 3) == [1, 3, 4]
