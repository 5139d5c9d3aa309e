from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch, inputs_of, labels_of, split
from snugfit.core.losses import causal_lm
from snugfit.errors import DataError, SettingError

IGNORED = -100


def texts(lengths: list[int], **more: Any) -> dict[str, Any]:
    width = max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    ids = torch.arange(1, len(lengths) * width + 1).view(len(lengths), width) * mask
    return {"input_ids": ids, "attention_mask": mask, **more}


# rows


def test_the_first_dimension_of_every_tensor_is_the_row() -> None:
    batch = Batch.of(
        {
            "x": torch.zeros(3, 2),
            "deep": [torch.zeros(3), {"y": torch.zeros(3, 1, 4)}],
            "shared": torch.tensor(2.0),
        }
    )
    assert batch.rows == 3


def test_rows_of_a_sparse_tensor_are_selected_as_those_of_a_dense_one() -> None:
    dense = torch.arange(12.0).view(4, 3) % 2
    batch = Batch.of((dense.to_sparse(), torch.arange(4)))
    for rows in (range(1, 3), [3, 0]):
        assert torch.equal(batch.select(rows).data[0].to_dense(), dense[list(rows)])


def test_tensors_that_disagree_on_the_rows_are_refused_with_both_sizes() -> None:
    with pytest.raises(DataError, match=r"one tensor has 3 rows, another has shape \(2, 5\)"):
        Batch.of((torch.zeros(3, 1), torch.zeros(2, 5)))


@pytest.mark.parametrize("data", [{}, {"names": ["a"]}, torch.tensor(1.0), []])
def test_a_batch_without_rows_is_refused(data: Any) -> None:
    with pytest.raises(DataError, match="no tensor with rows"):
        Batch.of(data)


# selecting


@pytest.mark.parametrize("rows", [[0, 1], [1, 2], [2, 0], [3], [0, 1, 2, 3], [3, 2, 1, 0]])
def test_select_takes_the_same_rows_of_everything(rows: list[int]) -> None:
    data = {
        "x": torch.arange(8).view(4, 2),
        "names": ["a", "b", "c", "d"],
        "k": torch.tensor(5),
        "mode": "fast",
    }
    selection = Batch.of(data, ids=[10, 11, 12, 13]).with_extras(cached=[torch.arange(4)]).select(rows)
    assert selection.rows == len(rows)
    assert selection.data["x"].tolist() == [[2 * row, 2 * row + 1] for row in rows]
    assert selection.data["names"] == ["abcd"[row] for row in rows]
    assert selection.ids == tuple(10 + row for row in rows)
    assert selection.extras["cached"][0].tolist() == rows
    assert selection.data["mode"] == "fast" and int(selection.data["k"]) == 5


def test_no_rows_may_be_selected() -> None:
    assert Batch.of(texts([2, 3])).select([]).data["input_ids"].shape == (0, 3)


def test_select_of_all_rows_in_order_is_the_batch_itself() -> None:
    batch = Batch.of(texts([2, 3]))
    assert batch.select(range(2)) is batch


def test_selecting_twice_is_selecting_once() -> None:
    data = texts([2, 5, 3, 4], labels=torch.arange(4))
    twice = Batch.of(data).select([3, 0, 2]).select([2, 1])
    once = Batch.of(data).select([2, 0])
    assert twice.lengths == once.lengths == (3, 2)
    assert torch.equal(twice.data["input_ids"], once.data["input_ids"])
    assert once.data["input_ids"].shape == (2, 3)


# trimming


def width_of(batch: Batch, rows: list[int]) -> int:
    return int(batch.select(rows).data["input_ids"].shape[1])


def test_padding_is_trimmed_to_the_longest_selected_row() -> None:
    labels = torch.full((3, 6), IGNORED)
    labels[2, :6] = 1
    batch = Batch.of(texts([2, 4, 6], labels=labels, token_type_ids=torch.zeros(3, 6)))
    selection = batch.select([0, 1])
    assert selection.lengths == (2, 4)
    assert {key: value.shape for key, value in selection.data.items()} == dict.fromkeys(batch.data, (2, 4))


def test_a_row_padded_on_the_left_is_as_long_as_the_padded_one() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    batch = Batch.of({"input_ids": mask * 7, "attention_mask": mask})
    assert batch.lengths == (4, 4)
    assert width_of(batch, [0]) == 4


def test_a_mask_may_ask_for_a_gradient() -> None:
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]], requires_grad=True)
    assert Batch.of({"inputs_embeds": torch.ones(2, 2, 3), "attention_mask": mask}).lengths == (1, 2)


def test_holes_in_the_mask_are_kept() -> None:
    mask = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1]])
    assert Batch.of({"input_ids": mask, "attention_mask": mask}).select([0]).data[
        "attention_mask"
    ].tolist() == [[1, 0, 1]]


@pytest.mark.parametrize(
    "more",
    [
        {"features": torch.randn(3, 6)},
        {"context": {"neighbours": torch.randn(3, 6, 2)}},
        {"labels": torch.ones(3, 6)},
        {"labels": torch.ones(3, 6, dtype=torch.int64)},
        {"decoder_input_ids": torch.ones(3, 6, dtype=torch.int64)},
    ],
    ids=["features", "nested", "score-a-class", "translation", "decoder"],
)
def test_nothing_is_trimmed_when_a_tensor_is_as_wide_by_chance(more: dict[str, Any]) -> None:
    """Or an encoder's length would cut the ends of features, of a class's score, of a translation's labels."""
    batch = Batch.of(texts([2, 4, 6], **more))
    selection = batch.select([0, 1])
    whole = {key: value for key, value in batch.data.items() if isinstance(value, Tensor)}
    assert all(torch.equal(selection.data[key], value[:2]) for key, value in whole.items())
    assert selection.lengths == (2, 4)


def test_features_of_another_width_do_not_stop_the_trimming() -> None:
    assert width_of(Batch.of(texts([2, 4, 6], features=torch.randn(3, 5))), [0, 1]) == 4


def test_features_that_are_as_wide_as_what_is_left_of_the_texts_stay_whole() -> None:
    features = torch.randn(3, 4)
    short = Batch.of(texts([2, 4, 6], features=features)).select([0, 1])
    assert width_of(short, [0]) == 2
    assert torch.equal(short.select([0]).data["features"], features[:1])
    assert short.padded_to(6).data["input_ids"].shape == (2, 6)
    assert torch.equal(short.padded_to(6).data["features"], features[:2])


def test_labels_of_0_and_1_that_are_as_many_as_the_tokens_that_are_left_stay_whole() -> None:
    labels = torch.tensor([[1.0, 0.0, 0.0, 1.0]] * 3)
    short = Batch.of(texts([2, 4, 6], labels=labels)).select([0, 1])
    assert width_of(short, [0]) == 2
    assert torch.equal(short.select([0]).data["labels"], labels[:1])
    assert torch.equal(short.padded_to(6).data["labels"], labels[:2])


def test_extras_are_never_trimmed() -> None:
    """An embedding may be as wide as the text is long."""
    batch = Batch.of(texts([2, 4, 6])).with_extras(cached=torch.randn(3, 6))
    assert batch.select([0]).extras["cached"].shape == (1, 6)


def test_no_label_that_counts_is_trimmed() -> None:
    lengths = [2, 4, 6]
    labels = texts(lengths)["input_ids"].masked_fill(texts(lengths)["attention_mask"] == 0, IGNORED)
    batch = Batch.of(texts(lengths, labels=labels))
    for row in range(3):
        own_labels = batch.select([row]).data["labels"]
        assert int((own_labels != IGNORED).sum()) == int((labels[row] != IGNORED).sum()) == lengths[row]
        assert (
            causal_lm(torch.zeros(1, own_labels.shape[1], 50), {"labels": own_labels}).weight()
            == lengths[row] - 1
        )


# splitting


def test_a_split_between_groups_covers_all_rows_once_and_keeps_each_group_together() -> None:
    for group in (2, 3, 4):
        for micro_batch in range(group, 12):
            for rows in range(1, 40):
                parts = split(rows, micro_batch, group)
                assert [row for part in parts for row in part] == list(range(rows))
                assert all(0 < len(part) <= micro_batch and part.start % group == 0 for part in parts)


@pytest.mark.parametrize(
    ("rows", "micro_batch", "sizes"),
    [(7, 2, [2, 2, 2, 1]), (7, 3, [2, 2, 3]), (5, 4, [2, 3]), (9, 4, [4, 2, 3])],
)
def test_a_last_row_without_a_partner_joins_the_part_before_it_where_it_fits(
    rows: int, micro_batch: int, sizes: list[int]
) -> None:
    """Batch norm refuses a micro-batch of one row."""
    assert [len(part) for part in split(rows, micro_batch, group=2)] == sizes


def test_a_micro_batch_smaller_than_a_group_is_refused() -> None:
    with pytest.raises(SettingError, match="micro_batch: is 1, .* groups of 2, which stay together. Give at"):
        split(4, 1, group=2)


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 7, 30, None])
def test_a_split_is_even_covers_all_rows_once_and_has_no_part_too_many(micro_batch: int | None) -> None:
    for rows in range(1, 20):
        parts = split(rows, micro_batch)
        assert [row for part in parts for row in part] == list(range(rows))
        sizes = [len(part) for part in parts]
        limit = micro_batch or rows
        assert max(sizes) <= limit and max(sizes) - min(sizes) <= 1
        assert len(parts) == -(-rows // limit)


# what the model and the loss take


def test_a_mapping_gives_all_but_its_labels_to_the_model() -> None:
    data = {"x": torch.zeros(1), "labels": torch.ones(1)}
    assert inputs_of(data) == ((), {"x": data["x"]})
    assert labels_of(data) is data["labels"]


def test_a_tuple_gives_all_but_its_last_entry_to_the_model() -> None:
    data = (torch.zeros(1), torch.ones(1), torch.full((1,), 2.0))
    args, kwargs = inputs_of(data)
    assert args == data[:2] and not kwargs
    assert labels_of(data) is data[2]


def test_a_single_tensor_is_the_only_argument() -> None:
    data = torch.zeros(2)
    assert inputs_of(data) == ((data,), {})
    assert inputs_of([data]) == ((data,), {})


@pytest.mark.parametrize("data", [{"x": torch.zeros(1)}, torch.zeros(1), [torch.zeros(1)]])
def test_a_batch_without_labels_is_refused_by_losses_that_need_them(data: Any) -> None:
    with pytest.raises(DataError, match="batch: no labels"):
        labels_of(data)


def test_the_loader_pins_every_tensor_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks an object of ours for `pin_memory`; without an accelerator its own would raise."""
    from torch.utils.data._utils.pin_memory import pin_memory

    pinned: list[Tensor] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor.clone())
    batch = Batch.of({"numbers": {"a": torch.ones(2, 3)}, "labels": torch.zeros(2)}, ids=(4, 5))
    found = pin_memory(batch)
    assert isinstance(found, Batch) and found.ids == (4, 5)
    assert [tuple(tensor.shape) for tensor in pinned] == [(2, 3), (2,)]


def test_labels_of_another_text_keep_their_tokens_when_the_texts_become_as_narrow() -> None:
    mask = torch.zeros(4, 9, dtype=torch.long)
    for row, length in enumerate((9, 5, 3, 2)):
        mask[row, :length] = 1
    labels = torch.arange(4 * 5).view(4, 5)
    window = Batch.of({"input_ids": mask, "attention_mask": mask, "labels": labels})
    some = window.select([1, 2, 3])
    assert some.data["input_ids"].shape[1] == 5 == labels.shape[1]
    fewer = some.select([1, 2])
    assert fewer.data["labels"].tolist() == labels[[2, 3]].tolist()


def test_a_nested_tensor_is_taken_whole_and_refused_where_rows_of_it_are_asked_for() -> None:
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    batch = Batch.of((torch.nested.nested_tensor(parts, layout=torch.jagged), torch.tensor([0, 1])))
    assert batch.rows == 2
    assert batch.select(range(2)) is batch
    with pytest.raises(DataError, match="cannot be split, and 1 row of its 2 are asked for"):
        batch.select([1])
    with pytest.raises(DataError, match="torch.strided, which has no rows"):
        Batch.of((torch.nested.nested_tensor(parts), torch.tensor([0, 1])))
