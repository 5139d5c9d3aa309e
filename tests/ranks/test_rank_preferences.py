"""Losses of preferences on ranks: the update of one process, also where a loss needs sums over the whole window."""

from __future__ import annotations

import pytest
import torch

from snugfit.kit.losses.preference_losses import DPO, KTO, ORPO, PreferenceLoss
from snugfit.kit.sharded_tensors import whole
from snugfit.step.evaluate import Scored, evaluate
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.step.preferences import trained

TOLERANCE = 1e-6
LOSSES: dict[str, PreferenceLoss] = {
    "dpo": DPO(beta=0.3),
    "orpo": ORPO(beta=0.5, form="trl"),
    "kto": KTO(beta=0.4, desirable=1.5),
}


def updated(name: str, strategy: str, count: int, micro_batch: int) -> dict[str, list[float]]:
    """The weights after an update, its loss, and the metrics before it."""
    loss = LOSSES[name]
    made = trained(loss, count, micro_batch, strategy=STRATEGIES[strategy]())
    step = made.step
    window = part_of(step, made.window())
    metrics = evaluate(Scored.of(step), [window], {"margin": "reward_margin", "right": "reward_accuracy"})
    result = step(window)
    told = [float(result.metrics[key]) for key in sorted(result.metrics)]
    numbers = {key: whole(each).flatten().tolist() for key, each in step.model.named_parameters()}
    return {**numbers, "result": [result.loss, result.weight, *metrics.values(), *told]}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", LOSSES)
def test_two_ranks_make_the_update_of_one(two: Ranks, name: str, strategy: str) -> None:
    for count in (5, 1) if name != "kto" else (5,):
        expected = updated(name, "alone", count, 2)
        for found in two.run(updated, name, strategy, count, 2):
            assert found.keys() == expected.keys()
            for key in expected:
                torch.testing.assert_close(
                    torch.tensor(found[key]), torch.tensor(expected[key]), rtol=TOLERANCE, atol=TOLERANCE
                )
