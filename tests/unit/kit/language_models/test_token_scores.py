"""Evaluations never hold the logits of all tokens, and find what whole logits give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from snugfit.core.batch import Batch
from snugfit.core.losses import logits_of
from snugfit.kit.language_models.generation import Generation
from snugfit.kit.language_models.written_texts import WRITTEN, WrittenTexts
from snugfit.kit.losses.preference_losses import ORPO
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.answer_scores import AnswerScores
from snugfit.step.step import Step
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.chunked_loss import ChunkedLoss

ROWS, TOKENS, LETTERS = 5, 400, 1000
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
EXACT = 1e-6  # float32, added up in another order
WHOLE = ROWS * TOKENS * LETTERS * 4
"""Bytes of all logits."""


def llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(vocab_size=LETTERS, **SIZES))


def gemma() -> nn.Module:
    """It caps its logits behind the head."""
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=LETTERS, head_dim=8, num_key_value_heads=2, final_logit_softcapping=0.3, **SIZES
        )
    )


def bert() -> nn.Module:
    return BertForMaskedLM(BertConfig(vocab_size=LETTERS, max_position_embeddings=TOKENS, **SIZES))


def window() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, LETTERS, (ROWS, TOKENS), generator=draw)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=draw) < 0.3, -100)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def scores(
    make: Callable[[], nn.Module],
    loss: Any,
    metrics: tuple[str, ...],
    *techniques: Any,
    data: Any = None,
    **own: Any,
) -> tuple[nn.Module, dict[str, float], int]:
    """The model, its scores, and the most bytes that were there at once on the way to them."""
    torch.manual_seed(0)
    step = Step(make(), SGD(), loss, techniques, **own)
    with AllocatedBytes() as allocated:
        found = evaluate(Scored.of(step), [Batch.of(data or window())], {each: each for each in metrics})
    return step.model.eval(), found, allocated.peak


@pytest.mark.parametrize("techniques", [(), (ChunkedLoss(chunk=50),)], ids=["by itself", "chunked_loss"])
def test_the_loss_of_next_tokens_is_that_of_all_logits_which_are_never_there(techniques: Any) -> None:
    model, found, peak = scores(llama, "causal_lm", ("perplexity",), *techniques)
    data = window()
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"]).logits
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), data["labels"][:, 1:].flatten())
    assert found["loss"] == pytest.approx(expected.item(), rel=EXACT)
    assert peak < WHOLE / 2


@pytest.mark.parametrize("techniques", [(), (ChunkedLoss(chunk=50),)], ids=["by itself", "chunked_loss"])
def test_metrics_of_classes_are_counted_without_all_logits(techniques: Any) -> None:
    model, found, peak = scores(bert, "cross_entropy", ("accuracy", "macro_f1"), *techniques)
    data = window()
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"]).logits
    counted = data["labels"] != -100
    right = (logits.argmax(dim=-1) == data["labels"])[counted].double().mean()
    loss = F.cross_entropy(logits.flatten(0, 1), data["labels"].flatten())
    assert found["loss"] == pytest.approx(loss.item(), rel=EXACT)
    assert found["accuracy"] == right.item()
    assert peak < WHOLE / 2


def test_preferences_are_scored_without_all_logits() -> None:
    ids = window()["input_ids"][:4].view(2, 2, TOKENS)
    labels = torch.cat([torch.full_like(ids[..., :20], -100), ids[..., 20:]], dim=-1)
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    forward = AnswerScores(ORPO())
    model, found, peak = scores(llama, ORPO(), ("reward_margin",), data=data, forward=forward)
    with torch.no_grad():
        outputs = forward(model, data)
        expected = ORPO()(outputs, data)
    whole = (
        expected.values * (1 if expected.weights is None else expected.weights)
    ).sum() / expected.weight()
    assert found["loss"] == pytest.approx(float(whole), rel=EXACT)
    assert peak < 4 * TOKENS * LETTERS * 4 / 2


def test_a_model_that_caps_its_logits_is_scored_by_all_of_them() -> None:
    model, found, _ = scores(gemma, "causal_lm", ("perplexity",))
    data = window()
    with torch.no_grad():
        logits = model(input_ids=data["input_ids"]).logits
    assert logits.abs().max() < 0.3
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), data["labels"][:, 1:].flatten())
    assert found["loss"] == pytest.approx(expected.item(), rel=EXACT)


def test_a_metric_of_ones_own_gets_all_logits() -> None:
    def spread(outputs: Mapping[str, Tensor], _data: Any) -> Tensor:
        assert outputs["logits"].shape == (ROWS, TOKENS, LETTERS)
        return outputs["logits"].std(dim=(1, 2))

    torch.manual_seed(0)
    step = Step(llama(), SGD(), "causal_lm")
    found = evaluate(Scored.of(step), [Batch.of(window())], {"spread": spread})
    with torch.no_grad():
        expected = step.model.eval()(input_ids=window()["input_ids"]).logits.std(dim=(1, 2)).mean()
    assert found["spread"] == pytest.approx(expected.item(), rel=EXACT)


@dataclass(frozen=True)
class Frozen:
    logits: Tensor


class Reading(nn.Module):
    """A small language model of one's own, by which something is done with what its head returns."""

    def __init__(self, behind: Callable[[Any], Any]) -> None:
        super().__init__()
        self.words, self.head, self.behind = nn.Embedding(LETTERS, 16), nn.Linear(16, LETTERS), behind

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.behind(self.head(self.words(input_ids)))


def tensors_alone(logits: Any) -> Tensor:
    if not isinstance(logits, Tensor):
        raise TypeError("no tensor")
    return logits


@pytest.mark.parametrize(
    ("behind", "by_all"),
    [
        (lambda logits: torch.where(logits > 0, logits, logits / 2), True),
        (lambda logits: torch.where(logits == 0, -1.0, logits), True),
        (lambda logits: -abs(logits), True),
        (lambda logits: 2**logits, True),
        (lambda logits: logits // 0.1, True),
        (tensors_alone, True),
        (lambda logits: [logits, 1], False),
        (lambda logits: (logits, 1), False),
        (Frozen, False),
    ],
    ids=["greater", "equal", "abs", "power", "floor", "its type", "list", "tuple", "frozen"],
)
def test_a_model_of_ones_own_is_scored_whatever_it_does_with_its_logits(
    behind: Callable[[Any], Any], by_all: bool
) -> None:
    model, found, peak = scores(lambda: Reading(behind), "causal_lm", ("perplexity",))
    data = window()
    with torch.no_grad():
        logits = logits_of(model(data["input_ids"], data["attention_mask"]))
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), data["labels"][:, 1:].flatten())
    assert found["loss"] == pytest.approx(expected.item(), rel=EXACT)
    assert (peak > WHOLE) is by_all


def test_what_fails_for_another_reason_fails_as_ever() -> None:
    def fail(_: Any) -> Tensor:
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        scores(lambda: Reading(fail), "causal_lm", ("perplexity",))


def t5() -> nn.Module:
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=LETTERS,
            d_model=16,
            d_kv=8,
            d_ff=16,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
        )
    )


@pytest.mark.parametrize("techniques", [(), (ChunkedLoss(chunk=50),)], ids=["by itself", "chunked_loss"])
def test_a_model_writes_the_texts_of_a_metric_beside_logits_that_are_postponed(techniques: Any) -> None:
    written: list[Tensor] = []
    reads: list[int] = []

    def texts(outputs: Mapping[str, Tensor], _data: Any) -> Tensor:
        written.append(outputs[WRITTEN])
        return outputs[WRITTEN].sum(dim=1)

    torch.manual_seed(0)
    forward = WrittenTexts(Generation(4))
    step = Step(t5(), SGD(), "cross_entropy", techniques, forward=forward)
    encoder: Any = step.model.encoder
    encoder.register_forward_hook(lambda *_: reads.append(1))
    found = evaluate(Scored.of(step), [Batch.of(window())], {"texts": texts})
    assert len(reads) == 2, "once for the loss, once for the texts"
    model, data = step.model.eval(), window()
    with torch.no_grad():
        expected = forward.scored(model, data)
    assert torch.equal(written[0], expected[WRITTEN])
    loss = F.cross_entropy(expected["logits"].flatten(0, 1), data["labels"].flatten())
    assert found["loss"] == pytest.approx(loss.item(), rel=EXACT)
