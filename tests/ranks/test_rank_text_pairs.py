"""Embeddings of texts on ranks: each row is told from the rows of all ranks, and the update is that of one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.losses import InfoNCE
from snugfit.data.texts.text_pairs import PadTexts
from snugfit.kit.language_models.text_embeddings import TextEmbeddings
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques.learning.gradient_cache import GradientCache
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

TOLERANCE = 1e-6


class Words(nn.Module):
    """A table of words whose rows are mixed by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.mixed = nn.Embedding(30, 6), nn.Linear(6, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.mixed(self.table(input_ids).tanh()) * attention_mask.unsqueeze(-1),)


def updated(strategy: str, count: int) -> dict[str, list[float]]:
    """The weights after an update, its loss, and a metric before it; rows are of other lengths, and two have one text."""
    examples = [
        {
            "input_ids": [[*range(1, 2 + row)], [20 - row, 3], [row + 9]],
            "texts": [row, 100 + row // 2, 200 + row],
        }
        for row in range(count)
    ]
    model = Words()
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        InfoNCE(temperature=0.2),
        [GradientCache()],
        micro_batch=2,
        forward=TextEmbeddings(),
        strategy=STRATEGIES[strategy](),
    )
    window = part_of(step, PadTexts(0, 12)(examples))
    metrics = evaluate(Scored.of(step), [window], {"mrr": "mrr"})
    result = step(window)
    numbers = {key: each.flatten().tolist() for key, each in step.model.named_parameters()}
    return {**numbers, "result": [result.loss, result.weight, *metrics.values()]}


@pytest.mark.slow
@pytest.mark.parametrize("count", [7, 3])
def test_two_ranks_make_the_update_of_one(two: Ranks, count: int) -> None:
    expected = updated("alone", count)
    for of_rank in two.run(updated, "ddp", count):
        assert of_rank.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(
                torch.tensor(of_rank[key]), torch.tensor(expected[key]), rtol=TOLERANCE, atol=TOLERANCE
            )
