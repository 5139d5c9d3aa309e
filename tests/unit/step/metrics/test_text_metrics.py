"""Metrics of written texts: those of torchmetrics, whatever the micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.kit.language_models.written_texts import WRITTEN
from snugfit.step.metrics.metric import make_metric
from snugfit.step.metrics.text_metrics import OF_TEXTS, text_metrics
from snugfit.strategies.base import Strategy

WORDS = ["the", "a", "cat", "dog", "sat", "on", "under", "mat", "hat", "ran.", "Fast,", "slow"]
PAIRS = [
    ([0, 2, 4, 5, 0, 7], [0, 2, 4, 5, 1, 7]),
    ([1, 3, 9, 11], [1, 3, 9, 11]),
    ([0, 2, 4, 5, 0, 7, 10, 11], [0, 3, 4, 5, 0, 7, 10]),
    ([], [0, 3]),
    ([6], [8, 2, 6, 4, 10, 11]),
    ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9]),
]


def decode(tokens: list[int]) -> str:
    return " ".join(WORDS[token] for token in tokens)


def batches(size: int, rows: Sequence[Any] = PAIRS) -> list[tuple[dict[str, torch.Tensor], Batch]]:
    made = []
    for start in range(0, len(rows), size):
        pairs = rows[start : start + size]
        written, labels = (
            torch.tensor([[*each, *[fill] * (9 - len(each))] for each in side])
            for side, fill in zip(zip(*pairs, strict=True), (-1, -100), strict=True)
        )
        made.append(({WRITTEN: written}, Batch.of({"labels": labels})))
    return made


def scores(size: int, rows: Sequence[Any] = PAIRS) -> dict[str, float]:
    values = {}
    for name, of_texts in text_metrics(decode).items():
        metric = make_metric(of_texts)
        for outputs, part in batches(size, rows):
            metric.update(outputs, part)
        values[name] = metric.compute(Strategy())
    return values


def test_any_micro_batches_give_the_same() -> None:
    whole = scores(len(PAIRS))
    assert set(whole) == set(OF_TEXTS) and whole["exact_match"] == 1 / len(PAIRS)
    assert scores(1) == pytest.approx(whole, rel=1e-12) and scores(4) == pytest.approx(whole, rel=1e-12)


@pytest.mark.slow
def test_they_are_those_of_torchmetrics() -> None:
    text = pytest.importorskip("torchmetrics.functional.text")
    written, targets = ([decode(each) for each in side] for side in zip(*PAIRS, strict=True))
    ours = scores(2)
    several = [[target] for target in targets]
    # it leaves the target out of the sums where nothing of it was written, which sacreBLEU does not
    own = [(one, other) for one, other in zip(written, several, strict=True) if one]
    assert scores(2, [pair for pair in PAIRS if pair[0]])["chrf"] == pytest.approx(
        float(text.chrf_score(*zip(*own, strict=True), n_word_order=0)), rel=1e-5
    )
    assert ours["bleu"] == pytest.approx(float(text.bleu_score(written, several)), rel=1e-5)
    rouge = text.rouge_score(written, targets, rouge_keys="rougeL")
    assert ours["rouge_l"] == pytest.approx(float(rouge["rougeL_fmeasure"]), rel=1e-5)


def test_a_model_that_writes_nothing_has_no_such_score() -> None:
    _, part = batches(2)[0]
    with pytest.raises(SettingError, match="the model has written none"):
        text_metrics(decode)["chrf"]({"logits": torch.zeros(2, 9, 12)}, part.data)
