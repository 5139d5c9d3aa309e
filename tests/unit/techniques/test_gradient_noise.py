from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.core.technique import Moment
from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.gradient_noise import GradientNoise, add_noise_, noise_variance
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [("eta", 0), ("eta", -1.0), ("eta", math.inf), ("gamma", -0.1), ("gamma", math.nan)],
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(GradientNoise, **{setting: value})


def test_the_variance_falls_with_the_updates() -> None:
    assert noise_variance(0, eta=0.3) == 0.3
    assert noise_variance(9, eta=0.3) == pytest.approx(0.3 / 10**0.55)
    assert noise_variance(9, eta=0.3, gamma=0.0) == 0.3


def test_the_noise_has_that_variance_and_no_mean() -> None:
    gradient = torch.ones(200_000)
    add_noise_([gradient], variance=0.25, generator=torch.Generator().manual_seed(0))
    # standard errors are 0.0011 and 0.0008
    assert float(gradient.mean()) == pytest.approx(1.0, abs=0.005)
    assert float(gradient.var()) == pytest.approx(0.25, abs=0.004)


def noise(moment: Moment) -> list[torch.Tensor]:
    weights = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))]
    for weight in (weights[0], weights[2]):
        weight.grad = torch.zeros(3)
    adjust = GradientNoise(eta=1.0, gamma=0.5).seams(context()).adjust
    assert adjust is not None
    adjust(weights, moment)
    assert weights[1].grad is None
    return [weight.grad for weight in weights if weight.grad is not None]


def test_draws_are_of_the_moment_and_of_nothing_else() -> None:
    """The same on every rank and after every stop; another window draws others."""
    torch.manual_seed(1)
    first = noise(Moment(updates=3, windows=5, seed=7))
    torch.manual_seed(2)
    again = noise(Moment(updates=3, windows=5, seed=7))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1]), "every weight has a draw of its own"
    later = noise(Moment(updates=15, windows=17, seed=7))
    torch.testing.assert_close(later[0], first[0] / 2**0.5)
    assert not torch.equal(noise(Moment(updates=3, windows=5, seed=8))[0], first[0])


@pytest.mark.parametrize("order", [1, -1])
def test_the_noise_comes_after_the_clipping_and_is_not_bounded_by_it(order: int) -> None:
    model = nn.Linear(4, 4, bias=False)
    techniques = [ClipNorm(max_norm=1e-3), GradientNoise(eta=1.0)][::order]
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.0), techniques=techniques)
    step((torch.ones(2, 4), torch.tensor([0, 1])))
    assert model.weight.grad is not None
    assert float(model.weight.grad.norm()) > 1.0
