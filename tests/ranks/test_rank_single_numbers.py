"""A trained parameter without a dimension, such as CLIP's temperature: each rank has it whole, and its update is that of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.technique import Technique
from snugfit.kit.sharded_tensors import whole
from tests.laws.problems import find_examples, name_of, relative_error
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, make_training, points, resumed, stop_at

TOLERANCE = 1e-10  # float64


class Scaled(nn.Module):
    """Logits under a temperature."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.body(inputs) * self.scale.exp()
        return logits


TECHNIQUES: list[tuple[Technique, ...]] = [
    find_examples(*names.split("+"))
    for names in (
        "adamw",
        "sgd+clip_norm",
        "lion+ema",
        "adafactor",
        "adamw+sam",
        "adamw+gradient_noise",
        "adamw+adaptive_clip",
        "sgd+optimizer_in_backward",
        "schedule_free",
    )
]


CASES = [("fsdp", each) for each in TECHNIQUES] + [
    (strategy, each) for strategy in ("fsdp-zero2", "reduce_once") for each in TECHNIQUES[1:3]
]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "techniques"), CASES, ids=name_of)
def test_a_single_number_that_trains_beside_shards_has_the_update_of_one_device(
    two: Ranks, strategy: str, techniques: tuple[Technique, ...]
) -> None:
    alone = trained("alone", techniques)
    assert alone["scale"] != Scaled().scale
    for found in two.run(trained, strategy, techniques):
        assert found["scale"] == pytest.approx(alone["scale"].item(), rel=TOLERANCE)
        assert relative_error(found, alone) <= TOLERANCE


def trained(strategy: str, techniques: tuple[Technique, ...]) -> dict[str, Tensor]:
    """The weights after windows of which the second rank has fewer rows, and none."""
    data = [(inputs.double(), labels) for inputs, labels in points(12)]
    training = make_training(
        Path("."), model=Scaled(), train=data, techniques=techniques, strategy=STRATEGIES[strategy]()
    )
    training.step.micro_batch = 2
    for start, rows in ((0, 7), (7, 1), (8, 4)):
        inputs, labels = zip(*data[start : start + rows], strict=True)
        window = (torch.stack(inputs), torch.stack(labels))
        assert training.step(part_of(training.step, window)).applied
    return {name: whole(each).clone() for name, each in training.step.model.named_parameters()}


def test_a_run_with_a_single_number_goes_on_from_its_checkpoint_bit_for_bit(
    two: Ranks, tmp_path: Path
) -> None:
    straight = two.run(run, tmp_path / "straight", False)
    assert two.run(run, tmp_path / "resumed", True) == straight


def run(folder: Path, stops: bool) -> list[Any]:
    def training() -> Any:
        return make_training(
            folder,
            model=Scaled(),
            train=data,
            techniques=find_examples("adamw"),
            strategy=STRATEGIES["fsdp"](),
        )

    data = [(inputs.double(), labels) for inputs, labels in points(12)]
    made = training()
    if stops:
        stop_at(made, 2)
        made = resumed(training())
    made.run(Never())
    return [whole(each).tolist() for each in made.step.model.parameters()]
