"""What the decoder reads: the model's own rule, or the shift that models without one have in their forward alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BartForConditionalGeneration,
    BartForSequenceClassification,
    M2M100Config,
    M2M100ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import snugfit as sf
from snugfit.errors import ModelError
from snugfit.kit.language_models.decoder_inputs import decoder_inputs_of

_SIZES = {
    "vocab_size": 24,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def _m2m100() -> nn.Module:
    torch.manual_seed(0)
    return M2M100ForConditionalGeneration(
        M2M100Config(**_SIZES, max_position_embeddings=32, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    )


def _whisper() -> nn.Module:
    torch.manual_seed(0)
    config = WhisperConfig(
        **_SIZES,
        num_mel_bins=4,
        max_source_positions=8,
        max_target_positions=16,
        begin_suppress_tokens=[],
    )
    return WhisperForConditionalGeneration(config)


def _labels() -> torch.Tensor:
    labels = torch.randint(3, 24, (5, 6), generator=torch.Generator().manual_seed(1))
    labels[1, 4:] = labels[3, 2:] = -100
    return labels


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (_m2m100, {"input_ids": torch.arange(3, 23).view(5, 4), "attention_mask": torch.ones(5, 4).long()}),
        (_whisper, {"input_features": torch.linspace(-1, 1, 320).view(5, 4, 16)}),
    ],
    ids=["m2m100", "whisper"],
)
def test_a_model_that_shifts_labels_in_its_forward_alone_learns_as_it_does_with_them(
    make: Any, inputs: dict[str, torch.Tensor]
) -> None:
    ours, theirs, batch = make(), make().train(), {**inputs, "labels": _labels()}
    result = sf.Step(ours, torch.optim.SGD(ours.parameters(), lr=0.1), micro_batch=2)(batch)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    loss = theirs(**batch).loss
    loss.backward()
    optimizer.step()
    assert result.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_a_missing_token_to_begin_with_is_named() -> None:
    model = _m2m100()
    model.config.decoder_start_token_id = None
    rule = decoder_inputs_of(model)
    assert rule is not None
    with pytest.raises(ModelError, match="no decoder_start_token_id"):
        rule(_labels())


def test_only_models_that_write_texts_have_a_rule() -> None:
    config = BartForConditionalGeneration.config_class(**_SIZES, max_position_embeddings=32)
    assert decoder_inputs_of(BartForConditionalGeneration(config)) is not None
    assert decoder_inputs_of(BartForSequenceClassification(config)) is None
    assert decoder_inputs_of(nn.Linear(2, 2)) is None
