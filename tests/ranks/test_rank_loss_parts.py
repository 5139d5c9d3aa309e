"""Terms of a loss by name are logged as their means over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.step.test_reported_means import TOLERANCE, model, plain, weighted, window

UPDATES = 2


def trained(strategy: str, rows: int, m: int | None) -> list[dict[str, float]]:
    """What each update logs, and an evaluation behind them."""
    step = Step(
        model(),
        SGD(learning_rate=0.01),
        weighted,
        [SAM(m=m)] if m else [],
        micro_batch=2,
        forward=lambda network, data: network(data[0]),
        strategy=STRATEGIES[strategy](),
    )
    data = tuple(each[-rows:] for each in window())
    logged = []
    for _ in range(UPDATES):
        result = step(part_of(step, data))
        logged.append({name: float(value) for name, value in result.metrics.items()} | {"loss": result.loss})
    part = part_of(step, data) if step.strategy.world_size > 1 else Batch.of(data)
    return [*logged, evaluate(Scored.of(step), [part], {})]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("rows", "m"), [(11, None), (11, 3), (1, None)])
def test_terms_are_those_of_one_rank(two: Ranks, strategy: str, rows: int, m: int | None) -> None:
    expected = trained("alone", rows, m)
    if rows == 11:
        assert expected[0] == pytest.approx(plain(), rel=TOLERANCE)
    for of_rank in two.run(trained, strategy, rows, m):
        for found, own in zip(of_rank, expected, strict=True):
            assert found == pytest.approx(own, rel=TOLERANCE)


def refusal_of_other_terms(strategy: str) -> str:
    """The error on a rank of which the first alone has a term with the name of what a technique logs."""

    def loss(outputs: Tensor, _: Any) -> dict[str, Tensor]:
        return {"gradient_norm" if dist.get_rank() == 0 else "size": outputs.abs().sum(1)}

    step = Step(
        model(),
        SGD(learning_rate=0.01),
        loss,
        [ClipNorm(max_norm=1.0)],
        forward=lambda network, data: network(data[0]),
        strategy=STRATEGIES[strategy](),
    )
    with pytest.raises(SettingError) as refused:
        step(part_of(step, window()))
    return str(refused.value)


def test_ranks_with_other_terms_all_say_so_before_one_of_them_leaves(two: Ranks) -> None:
    for refusal in two.run(refusal_of_other_terms, "ddp"):
        assert "parts size on one rank" in refusal or "parts gradient_norm on one rank" in refusal
