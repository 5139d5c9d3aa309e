from __future__ import annotations

from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.core.losses import causal_lm, over_batches
from snugfit.core.technique import Moment
from snugfit.errors import SettingError
from snugfit.techniques.learning.sequence_length import SequenceLength, length_at, truncated
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [("initial", 1), ("fraction", 0.0), ("fraction", 1.5), ("fraction", float("nan")), ("increment", 0)],
)
def test_an_impossible_setting_is_refused(setting: str, value: float) -> None:
    refuses(SequenceLength, **{setting: value})


def test_a_run_of_unknown_length_is_refused() -> None:
    with pytest.raises(SettingError, match="sequence_length: needs the length of the run"):
        SequenceLength().seams(context())


def tokens(*lengths: int) -> dict[str, Any]:
    width = max(lengths)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    ids = torch.arange(1, width + 1) * mask
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def cut(data: Any, updates: int, **settings: Any) -> Batch:
    seams = SequenceLength(**settings).seams(context(total_updates=10))
    assert seams.batch is not None
    return seams.batch(Batch.of(data), Moment(updates=updates, windows=updates, seed=0))


def test_the_length_never_falls_and_ends_at_the_whole_width() -> None:
    lengths = [length_at(updates, 20, initial=7, width=50, increment=5) for updates in range(25)]
    assert lengths == sorted(lengths)
    assert lengths[0] == 7 and lengths[20:] == [50] * 5
    assert len(set(lengths)) > 5
    assert all((length - 7) % 5 == 0 for length in lengths[:20])


def test_a_text_that_is_shorter_than_the_beginning_stays_whole() -> None:
    assert length_at(0, 20, initial=64, width=10) == 10


def test_tensors_of_tokens_are_cut_together_and_lengths_follow() -> None:
    found = cut(tokens(9, 3, 6), updates=0, initial=4, fraction=1.0, increment=1)
    assert {tensor.shape for tensor in found.data.values()} == {torch.Size([3, 4])}
    assert found.lengths == (4, 3, 4) and found.padded == 4
    shortest = found.select([1])
    assert shortest.data["input_ids"].shape == (1, 3)


def test_a_window_behind_the_warm_up_is_the_same_object() -> None:
    batch = Batch.of(tokens(9, 3))
    seams = SequenceLength(initial=4, fraction=0.5).seams(context(total_updates=10))
    assert seams.batch is not None
    assert seams.batch(batch, Moment(updates=5, windows=5, seed=0)) is batch


def test_labels_of_classes_that_are_as_many_as_tokens_stay_whole() -> None:
    found = cut({**tokens(6, 2), "labels": torch.ones(2, 6)}, updates=0, initial=4, fraction=1.0)
    assert found.data["input_ids"].shape == (2, 4) and found.data["labels"].shape == (2, 6)


def test_features_that_are_as_many_as_the_tokens_left_are_not_cut_with_the_padding() -> None:
    data = {**tokens(6, 2), "features": torch.ones(2, 4)}
    assert Batch.of(data).padded == 6
    found = cut(data, updates=0, initial=4, fraction=1.0)
    assert found.select([1]).data["features"].shape == (1, 4)


def test_a_row_that_has_no_label_left_counts_nothing_and_harms_nothing() -> None:
    data = tokens(6, 6)
    data["labels"][1, :4] = -100  # the answer of the second text comes at its end
    found = cut(data, updates=0, initial=4, fraction=1.0)
    logits = torch.randn(2, 4, 9, requires_grad=True)
    terms = over_batches(causal_lm)(logits, found)
    assert terms.by_row().weights.tolist() == [3.0, 0.0]
    (terms.weighted_sum() / terms.weight()).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    assert (logits.grad[1] == 0).all()


@pytest.mark.parametrize("data", [(torch.ones(2, 4), torch.zeros(2)), {"numbers": torch.ones(2, 4)}])
def test_a_batch_without_tokens_is_refused(data: Any) -> None:
    with pytest.raises(SettingError, match="sequence_length: the batch has no input_ids"):
        cut(data, updates=0)


def test_a_mask_of_another_shape_is_left_alone() -> None:
    data = {"input_ids": torch.ones(2, 6, dtype=torch.int64), "attention_mask": torch.ones(2, 1, 6, 6)}
    assert truncated(data, 4)["attention_mask"].shape == (2, 1, 6, 6)


def test_of_a_text_that_is_padded_on_the_left_the_first_tokens_are_kept() -> None:
    whole = tokens(6, 2, 5)
    left = {
        name: torch.stack([row.roll(6 - n) for row, n in zip(value, (6, 2, 5), strict=True)])
        for name, value in whole.items()
    }
    found = cut(left, updates=0, initial=4, fraction=1.0)
    assert found.data["input_ids"].tolist() == [[1, 2, 3, 4], [0, 0, 1, 2], [1, 2, 3, 4]]
    assert found.data["attention_mask"].tolist() == [[1] * 4, [0, 0, 1, 1], [1] * 4]
    assert found.data["labels"].tolist() == [[1, 2, 3, 4], [-100, -100, 1, 2], [1, 2, 3, 4]]
    assert found.lengths == (4, 4, 4)


def test_a_text_without_any_token_is_cut_as_the_others_are() -> None:
    data = tokens(6, 3)
    data["attention_mask"][1] = 0
    assert truncated(data, 4)["input_ids"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]


def test_a_text_beside_another_is_refused() -> None:
    data = tokens(6, 6)
    with pytest.raises(SettingError, match="^sequence_length: the batch has 'decoder_input_ids', and a text"):
        cut({**data, "decoder_input_ids": data["input_ids"]}, updates=0, initial=4)


def test_a_model_that_writes_a_text_from_another_is_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with pytest.raises(SettingError, match="^sequence_length: the model writes a text from another"):
        SequenceLength().seams(context(model, total_updates=10))
