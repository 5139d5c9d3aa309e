"""Hooks of the user's own on gradients: what a split of the window would change is refused or said."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.strategies.base import Strategy

ROWS = (torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)


def _halve(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def _step(model: nn.Module, micro_batch: int | None, **settings: Any) -> sf.Step:
    return sf.Step(model, sf.AdamW(), micro_batch=micro_batch, **settings)


def _clamp(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad.clamp(-0.05, 0.05)


@pytest.mark.parametrize(
    "techniques", [[], [sf.OptimizerInBackward()], [sf.SAM(rho=0.05)], [sf.ClipNorm(0.1)]]
)
@pytest.mark.parametrize("hook", [_halve, _clamp])
def test_a_hook_behind_the_gradient_is_called_on_that_of_the_window_however_it_is_split(
    hook: Any, techniques: list[sf.Technique]
) -> None:
    weights = []
    for micro_batch in (None, 2, 4):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        model.weight.register_post_accumulate_grad_hook(hook)
        step = _step(model, micro_batch, techniques=techniques)
        for _ in range(2):
            assert step(ROWS).applied
        weights.append(torch.cat([each.flatten() for each in model.parameters()]))
    assert torch.allclose(weights[1], weights[0], atol=1e-6) and torch.allclose(
        weights[2], weights[0], atol=1e-6
    )


def test_a_hook_behind_the_gradient_is_called_once_for_a_window_and_may_remove_itself() -> None:
    model, seen = nn.Linear(4, 3), []
    model.weight.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.clone()))
    once = model.bias.register_post_accumulate_grad_hook(
        lambda each: (seen.append(each.grad.clone()), once.remove())[0]
    )
    step = _step(model, 2)
    step(ROWS)
    step(ROWS)
    assert [len(each.shape) for each in seen] == [2, 1, 2]


def test_a_hook_behind_the_gradient_is_refused_where_parts_of_it_are_added_up_on_the_host() -> None:
    model = nn.Linear(4, 3)
    model.weight.register_post_accumulate_grad_hook(_halve)
    with pytest.raises(
        SettingError, match="micro_batch: splits windows whose gradients are added up in host memory"
    ):
        _step(model, 2, techniques=[sf.GradientOffload()])(ROWS)


def test_a_hook_on_the_gradient_is_said_once_to_see_parts_of_it() -> None:
    model = nn.Linear(4, 3)
    model.bias.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
    step = _step(model, 2)
    with pytest.warns(
        SnugfitWarning, match="the hook on the gradient of 'bias' is called by each micro-batch"
    ):
        step(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(ROWS)
        _step(model, None)(ROWS)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_model_with_hooks_on_gradients_is_not_sharded(register: str) -> None:
    model = nn.Linear(4, 3)
    getattr(model.weight, register)(lambda each: None)
    with pytest.raises(
        SettingError, match="strategy: shards the model, and 'weight' has a hook on its gradient"
    ):
        _step(model, None, strategy=Sharding())


class Sharding(Strategy):
    """A strategy that says of itself that it shards, and is asked for nothing."""

    shards = True
