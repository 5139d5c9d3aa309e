from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.progress import Progress
from snugfit.core.technique import Seams
from snugfit.techniques.learning.lookahead import Lookahead, look_back_
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0.0, -0.1, 1.1, float("nan")])
def test_an_impossible_alpha_is_refused(value: float) -> None:
    refuses(Lookahead, alpha=value)


@pytest.mark.parametrize("value", [0, -1])
def test_an_impossible_distance_is_refused(value: int) -> None:
    refuses(Lookahead, every=value)


def test_slow_and_fast_weights_meet_part_of_the_way() -> None:
    slow, fast = [torch.tensor([1.0, 2.0]), torch.tensor(4.0)], [torch.tensor([3.0, 0.0]), torch.tensor(4.0)]
    look_back_(slow, fast, alpha=0.25)
    for tensors in (slow, fast):
        assert [tensor.tolist() for tensor in tensors] == [[1.5, 1.5], 4.0]


def moved(seams: Seams, model: nn.Linear, value: float, updates: int) -> float:
    """The weight after an update, which set it to `value`, has been followed."""
    with torch.no_grad():
        model.weight.fill_(value)
    assert seams.updated is not None
    seams.updated(model, Progress(updates=updates))
    return float(model.weight.detach())


def one_weight(value: float = 0.0, dtype: torch.dtype = torch.float32) -> nn.Linear:
    model = nn.Linear(1, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, value)
    return model


def test_only_every_third_update_goes_back() -> None:
    model = one_weight()
    seams = Lookahead(every=3, alpha=0.5).seams(context(model))
    assert [moved(seams, model, 8.0, updates) for updates in range(1, 7)] == [8.0, 8.0, 4.0, 8.0, 8.0, 6.0]


def test_slow_weights_of_half_precision_are_kept_in_float32() -> None:
    model = one_weight(256.0, torch.bfloat16)
    seams = Lookahead(every=1, alpha=0.5).seams(context(model))
    assert moved(seams, model, 258.0, updates=1) == 256.0, "257 is between two numbers of bf16"
    assert moved(seams, model, 258.0, updates=2) == 258.0, "257.5 is not: the slow weights had it all"
    assert model.weight.dtype == torch.bfloat16


def test_a_parameter_that_did_not_move_keeps_its_bits() -> None:
    model = one_weight(1 / 3)
    seams = Lookahead(every=1, alpha=0.3).seams(context(model))
    before = float(model.weight.detach())
    assert moved(seams, model, before, updates=1) == before


def test_the_state_is_the_slow_weights_by_name() -> None:
    model, other = one_weight(), one_weight(100.0)
    settings = Lookahead(every=1, alpha=0.5)
    seams, resumed = settings.seams(context(model)), settings.seams(context(other))
    moved(seams, model, 8.0, updates=1)
    assert seams.state is not None and resumed.state is not None
    resumed.state.load_state_dict(seams.state.state_dict())
    assert resumed.state.state_dict()["slow"]["weight"].tolist() == [[4.0]]
    assert moved(resumed, other, 8.0, updates=2) == moved(seams, model, 8.0, updates=2) == 6.0
