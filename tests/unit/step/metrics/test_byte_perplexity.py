"""Perplexity per byte is that of the same loss, spread over the bytes of the text."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.losses import causal_lm, over_batches
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.byte_perplexity import PerByte
from snugfit.step.metrics.metric import check_fit

TEXTS = {1: "a", 2: "né", 3: "", 4: "four"}


class Bigrams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(5, 5))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table[input_ids]


def decode(tokens: object) -> str:
    return "".join(TEXTS[token] for token in tokens)  # type: ignore[attr-defined]


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_it_is_the_loss_of_all_tokens_over_the_bytes_of_their_texts(micro_batch: int) -> None:
    ids = torch.tensor([[1, 2, 4, 3], [2, 2, 1, 4], [4, 1, 3, 2]])
    labels = ids.clone()
    labels[1, 2:] = -100
    model = Bigrams()
    scored = Scored(
        model,
        torch.device("cpu"),
        lambda batch: model(batch.data["input_ids"]),
        over_batches(causal_lm),
        micro_batch=micro_batch,
    )
    metrics = {"perplexity_per_byte": PerByte(decode)}
    scores = evaluate(scored, [Batch.of({"input_ids": ids, "labels": labels})], metrics)
    chances = model.table.log_softmax(1)
    nats = size = 0.0
    for row, wanted in zip(ids.tolist(), labels.tolist(), strict=True):
        for before, token in zip(row, wanted[1:], strict=False):
            if token != -100:
                nats -= float(chances[before, token].detach())
                size += len(TEXTS[token].encode())
    assert scores["perplexity_per_byte"] == pytest.approx(math.exp(nats / size), rel=1e-5)


def test_a_recipe_may_name_it_for_next_tokens() -> None:
    check_fit(["perplexity", "perplexity_per_byte"], "causal_lm")
    with pytest.raises(SettingError, match="accuracy compares each output with the label at its place"):
        check_fit(["accuracy"], "causal_lm")
