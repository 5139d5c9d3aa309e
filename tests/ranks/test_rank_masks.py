"""Classes of pixels on ranks: the update of a network with an auxiliary head is that of one process, and so is the mean IoU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from snugfit.kit.losses.auxiliary_loss import WithAuxiliary
from snugfit.models.segmenter import Segmenter
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

TOLERANCE = 1e-6


class Network(nn.Module):
    """A network as transformers has them: logits at half the size, and an auxiliary head of which it gives none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.decode_head, self.auxiliary_head = nn.Conv2d(4, 3, 1), nn.Conv2d(4, 3, 1)

    def forward(self, pixel_values: torch.Tensor) -> SimpleNamespace:
        values = self.body(pixel_values).relu()
        self.auxiliary_head(values)
        return SimpleNamespace(logits=self.decode_head(values))


def updated(strategy: str, count: int) -> dict[str, list[float]]:
    """The weights after an update, its loss, and scores before it; each picture has another number of pixels that count."""
    drawn = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (count, 8, 8), generator=drawn)
    for row in range(count):
        labels[row, : row + 1] = -100
    data = {"pixel_values": torch.randn(count, 3, 8, 8, generator=drawn), "labels": labels}
    model = Segmenter(Network())
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        WithAuxiliary(0.4),
        micro_batch=2,
        strategy=STRATEGIES[strategy](),
    )
    window = part_of(step, data)
    scores = evaluate(Scored.of(step), [window], {"mean_iou": "mean_iou"})
    result = step(window)
    numbers = {key: each.flatten().tolist() for key, each in step.model.named_parameters()}
    return {**numbers, "result": [result.loss, result.weight, *scores.values()]}


@pytest.mark.slow
@pytest.mark.parametrize("count", [7, 3])
def test_two_ranks_make_the_update_of_one(two: Ranks, count: int) -> None:
    expected = updated("alone", count)
    assert any(expected["network.auxiliary_head.weight"])
    for of_rank in two.run(updated, "ddp", count):
        assert of_rank.keys() == expected.keys()
        for key in expected:
            torch.testing.assert_close(
                torch.tensor(of_rank[key]), torch.tensor(expected[key]), rtol=TOLERANCE, atol=TOLERANCE
            )
