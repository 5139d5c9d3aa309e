"""The loss of a model that is given without one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForCausalLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import snugfit as sf
from snugfit.kit.losses.default_loss import default_loss, loss_message

_SIZES = {
    "vocab_size": 24,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def _bert(**settings: object) -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(**_SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **settings)
    )


def _named(name: str, **config: object) -> nn.Module:
    model = type(name, (nn.Module,), {})()
    model.config = SimpleNamespace(is_encoder_decoder=False, **config)
    return model


def _llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SIZES))


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (nn.Linear(2, 2), "cross_entropy"),
        (_llama(), "causal_lm"),
        (_named("LlavaForConditionalGeneration"), "causal_lm"),
        (_named("XLNetLMHeadModel"), "cross_entropy"),
        (_named("MBartForCausalLM"), "cross_entropy"),
        (_named("ReformerModelWithLMHead"), "causal_lm"),
        (_named("FlaubertWithLMHeadModel"), "cross_entropy"),
        (_named("GPT2DoubleHeadsModel"), "causal_lm"),
        (_named("IdeficsForVisionText2Text"), "causal_lm"),
        (BertForMaskedLM(BertConfig(**_SIZES)), "cross_entropy"),
        (T5ForConditionalGeneration(T5Config(vocab_size=24, d_model=8, d_kv=4, d_ff=8, num_layers=1)), "cross_entropy"),
        (_bert(num_labels=3), "cross_entropy"),
        (_bert(num_labels=1), "mse"),
        (_bert(num_labels=3, problem_type="regression"), "mse"),
        (_bert(num_labels=3, problem_type="multi_label_classification"), "binary_cross_entropy"),
        (BertForTokenClassification(BertConfig(**_SIZES, num_labels=1)), "cross_entropy"),
    ],
)  # fmt: skip
def test_it_is_what_the_model_computes_from_labels(model: nn.Module, loss: str) -> None:
    assert default_loss(model) == loss


def test_a_class_of_ones_own_and_a_compiled_model_are_of_the_kind_within() -> None:
    class Mine(LlamaForCausalLM):
        pass

    assert default_loss(Mine(LlamaConfig(**_SIZES))) == "causal_lm"
    assert default_loss(torch.compile(_llama(), backend="eager")) == "causal_lm"


def test_a_causal_language_model_without_a_loss_learns_the_next_token() -> None:
    tokens = torch.randint(0, 24, (6, 7), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens}
    ours, theirs = _llama(), _llama()
    result = sf.Step(ours, torch.optim.SGD(ours.parameters(), lr=0.1), micro_batch=4)(batch)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    loss = theirs(**batch).loss
    loss.backward()
    optimizer.step()
    assert result.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    torch.testing.assert_close(ours.lm_head.weight, theirs.lm_head.weight, rtol=0, atol=1e-6)


def test_a_decoder_alone_scores_labels_that_are_shifted_already() -> None:
    model = BartForCausalLM(
        BartConfig(
            vocab_size=24, d_model=8, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=8, dropout=0.0
        )
    ).train()  # fmt: skip
    tokens = torch.randint(0, 24, (6, 7), generator=torch.Generator().manual_seed(1))
    batch = {"input_ids": tokens, "labels": tokens}
    own = float(model(**batch).loss.detach())
    result = sf.Step(model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batch=4)(batch)
    assert result.loss == pytest.approx(own, abs=1e-5)
    assert loss_message("cross_entropy", model) is None


def test_a_run_says_the_loss_that_it_chose_and_one_that_is_not_the_models_own() -> None:
    tokens = torch.randint(0, 24, (8, 5), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": each, "labels": each} for each in tokens]
    lines: list[dict[str, object]] = []
    sf.train(_llama(), rows, updates=1, global_batch=4, output=None, display=lines.append)
    assert "the loss is causal_lm, as LlamaForCausalLM computes it from labels" in str(lines)
    assert "give loss causal_lm" in str(loss_message("cross_entropy", _llama()))
    assert loss_message("causal_lm", _llama()) is None
    assert loss_message(None, nn.Linear(2, 2)) is None
