"""Packed sequences as rows of a batch."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.tree import map_packed, select_packed
from snugfit.errors import DataError

LENGTHS = (2, 5, 1, 5, 3)


def packed(sort: bool = False) -> PackedSequence:
    lengths = sorted(LENGTHS, reverse=True) if sort else LENGTHS
    rows = [torch.arange(10.0 * row, 10 * row + length) for row, length in enumerate(lengths)]
    return pack_sequence(rows, enforce_sorted=sort)


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("rows", [[0], [1, 2], [4, 0, 3], [3, 1], range(5)])
def test_selected_sequences_are_those_rows_in_that_order(sort: bool, rows: list[int]) -> None:
    whole = unpack_sequence(packed(sort))
    found = select_packed(packed(sort), rows)
    assert [each.tolist() for each in unpack_sequence(found)] == [whole[row].tolist() for row in rows]
    again = select_packed(found, range(len(rows))[::-1])
    assert [each.tolist() for each in unpack_sequence(again)] == [whole[row].tolist() for row in rows][::-1]


def test_sequences_that_stay_sorted_need_no_indices() -> None:
    assert select_packed(packed(sort=True), [1, 3]).sorted_indices is None
    assert select_packed(packed(sort=True), [3, 0]).sorted_indices is not None


def test_which_row_is_where_is_known_without_a_look_at_the_device() -> None:
    moved = map_packed(lambda tensor: tensor.to("meta"), pickle.loads(pickle.dumps(packed())))
    found = select_packed(moved, [1, 2])
    assert found.batch_sizes.tolist() == [2, 1, 1, 1, 1]
    assert found.data.device.type == "meta"


def test_a_batch_counts_packed_sequences_as_rows_and_refuses_another_number_of_labels() -> None:
    batch = Batch.of({"inputs": packed(), "labels": torch.arange(5)})
    assert batch.rows == 5
    part = batch.select([3, 0])
    assert [each.tolist() for each in unpack_sequence(part.data["inputs"])] == [[30, 31, 32, 33, 34], [0, 1]]
    assert part.data["labels"].tolist() == [3, 0]
    alone = Batch.of(packed())
    assert alone.rows == 5 and inputs_of(alone.data) == ((alone.data,), {})
    with pytest.raises(DataError, match="has 4 rows, another has packed sequences with 5"):
        Batch.of({"labels": torch.arange(4), "inputs": packed()})
