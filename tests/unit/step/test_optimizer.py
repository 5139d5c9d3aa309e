from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.step.step import Step
from snugfit.techniques import find
from tests.laws.problems import saved

WINDOW = (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]))


def test_the_rate_that_somebodys_own_scheduler_has_set_stays() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=10)
    step = Step(model, optimizer)
    assert step(WINDOW).learning_rate == pytest.approx(0.01)
    scheduler.step()
    assert step(WINDOW).learning_rate == scheduler.get_last_lr()[0]


def test_a_second_step_keeps_the_rate_that_was_set_since() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.01
    assert Step(model, optimizer)(WINDOW).learning_rate == 0.01


def test_a_schedule_over_a_torch_optimizer_begins_from_the_rate_it_was_made_with() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    step = Step(model, optimizer, techniques=[find("linear")()], total_updates=4)
    assert [step(WINDOW).learning_rate for _ in range(4)] == [1.0, 0.75, 0.5, 0.25]


@pytest.mark.parametrize("name", ["adamw", "radam", "madgrad", "adafactor", "lion", "muon", "rmsprop"])
def test_moments_that_were_saved_contiguous_go_on_beside_a_transposed_weight(name: str) -> None:
    """Torch's fused AdamW walks through both as they lie in memory, and would pair them wrongly."""

    def fresh(seed: int) -> Step:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
        for layer in (model[0], model[2]):
            layer.weight = nn.Parameter(layer.weight.detach().t().contiguous().t())
        return Step(model, find(name)())

    whole = fresh(0)
    for _ in range(3):
        whole(WINDOW)
    state = saved(whole)
    assert all(each.is_contiguous() for each in state["parameters"].values())
    resumed = fresh(1)
    resumed.load_state_dict(state)
    for _ in range(3):
        whole(WINDOW), resumed(WINDOW)
    for one, other in zip(whole.parameters, resumed.parameters, strict=True):
        assert torch.equal(one, other)
