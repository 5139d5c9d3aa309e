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


def test_a_hook_behind_the_gradient_is_refused_where_micro_batches_would_call_it_on_each_sum() -> None:
    model = nn.Linear(4, 3)
    model.weight.register_post_accumulate_grad_hook(_halve)
    assert _step(model, None)(ROWS).applied
    with pytest.raises(SettingError, match="micro_batch: splits windows, and 'weight' has a hook"):
        _step(model, 2)(ROWS)


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
