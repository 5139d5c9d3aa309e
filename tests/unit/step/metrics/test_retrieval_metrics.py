"""Ranks of partners among all texts of an evaluation, beside a loop."""

from __future__ import annotations

import math

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.step.metrics import retrieval_metrics
from snugfit.step.metrics.metric import make_metric, monitored
from snugfit.step.metrics.retrieval_metrics import ranks_of
from snugfit.strategies.base import Strategy
from tests.oracles.text_pairs import ranks
from tests.unit.core.test_embedding_pairs import PAIRS, SHARED, TRIPLETS, drawn, numbers

MANY = [[first, chr(ord(first) + 26)] for first in "abcdefghijklmnopqrstuvwxyz"]


@pytest.mark.parametrize("rows", [PAIRS, SHARED, TRIPLETS, MANY], ids=["pairs", "shared", "triplets", "many"])
@pytest.mark.parametrize("at_once", [2, 1024])
def test_the_ranks_are_those_of_a_loop(
    rows: list[list[str]], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval_metrics, "_ROWS", at_once)
    embeddings = drawn(rows)
    assert ranks_of(embeddings, numbers(rows)).tolist() == ranks(embeddings.tolist(), rows)


@pytest.mark.parametrize("rows", [PAIRS, SHARED, TRIPLETS], ids=["pairs", "shared", "triplets"])
def test_the_ranks_do_not_depend_on_the_order_of_the_rows(rows: list[list[str]]) -> None:
    other = rows[::-1]
    assert sorted(ranks_of(drawn(rows), numbers(rows)).tolist()) == sorted(
        ranks_of(drawn(other), numbers(other)).tolist()
    )


@pytest.mark.parametrize("name", ["mrr", "recall_at_1", "recall_at_10"])
def test_embeddings_that_are_no_numbers_have_no_score(name: str) -> None:
    embeddings = drawn(MANY)
    embeddings[3] = torch.nan
    metric = make_metric(name)
    metric.update({"logits": embeddings}, Batch.of({"labels": numbers(MANY)}))
    assert math.isnan(metric.compute(Strategy()))


def test_embeddings_that_are_all_the_same_find_nothing() -> None:
    same = torch.ones(len(MANY), 2, 4)
    assert ranks_of(same, numbers(MANY)).tolist() == [1 + 25 / 2] * len(MANY)


@pytest.mark.parametrize("parts", [1, 3])
def test_the_metrics_are_of_all_rows_in_any_number_of_parts(parts: int) -> None:
    embeddings, texts = drawn(MANY), numbers(MANY)
    expected = torch.tensor(ranks(embeddings.tolist(), MANY))
    for name, value in (
        ("mrr", (1 / expected).mean()),
        ("recall_at_1", (expected <= 1).float().mean()),
        ("recall_at_10", (expected <= 10).float().mean()),
    ):
        metric = make_metric(name)
        for rows in torch.arange(len(MANY)).tensor_split(parts):
            metric.update({"logits": embeddings[rows]}, Batch.of({"labels": texts[rows]}))
        assert metric.compute(Strategy()) == pytest.approx(float(value))
        assert monitored(name, [name]) == (name, True)


def test_what_is_no_embedding_of_pairs_is_refused() -> None:
    metric = make_metric("mrr")
    metric.update(torch.zeros(4, 3), Batch.of({"labels": torch.zeros(4, dtype=torch.int64)}))
    with pytest.raises(SettingError, match="need those of pairs of texts"):
        metric.compute(Strategy())
