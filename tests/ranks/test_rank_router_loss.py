"""The routers' loss of an expert model: of the tokens on all ranks."""

from __future__ import annotations

import pytest
import torch

from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.step.test_router_loss import mixtral, texts

TOLERANCE = 1e-5


def trained(strategy: str, rows: int, micro_batch: int) -> list[list[float]]:
    """The weights after an update, and the loss with the routers' own."""
    step = Step(
        mixtral(),
        SGD(learning_rate=0.1),
        "causal_lm",
        micro_batch=micro_batch,
        strategy=STRATEGIES[strategy](),
    )
    data = {name: entries[:rows] for name, entries in texts(max(rows, 2)).items()}
    result = step(part_of(step, data))
    weights = [whole(each).flatten().tolist() for each in step.parameters]
    return [*weights, [result.loss, float(result.metrics["router_loss"])]]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("rows", [6, 5, 1])
def test_the_routers_are_balanced_over_the_tokens_of_all_ranks(two: Ranks, strategy: str, rows: int) -> None:
    expected = trained("alone", rows, 1)
    for found in two.run(trained, strategy, rows, 2):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=TOLERANCE, atol=TOLERANCE)
