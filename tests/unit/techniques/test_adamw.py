from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.adamw import AdamW, fastest_kernel
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_or_epsilon_is_refused(value: float) -> None:
    refuses(AdamW, learning_rate=value)
    refuses(AdamW, epsilon=value)


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, 0.99, 0.999)])
def test_impossible_betas_are_refused(betas: tuple[float, ...]) -> None:
    refuses(AdamW, betas=betas)


def test_a_negative_decay_is_refused() -> None:
    refuses(AdamW, weight_decay=-0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed(dtype: torch.dtype) -> None:
    settings = AdamW(learning_rate=0.3, betas=(0.5, 0.6), epsilon=0.1, weight_decay=0.2)
    model = nn.Linear(2, 2).to(dtype)
    make = settings.seams(context(model)).optimizer
    assert make is not None
    decay, no_decay = make(parameter_groups(model)).param_groups
    for group, weight_decay in ((decay, 0.2), (no_decay, 0.0)):
        assert (group["lr"], tuple(group["betas"]), group["eps"]) == (0.3, (0.5, 0.6), 0.1)
        assert group["weight_decay"] == weight_decay


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fastest_kernel_updates_as_the_plain_one(dtype: torch.dtype) -> None:
    models = [nn.Linear(4, 4).to(dtype) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    kernels = [fastest_kernel(torch.device("cpu")), {"foreach": False, "fused": False}]
    optimizers = [
        torch.optim.AdamW(m.parameters(), lr=0.1, **kernel) for m, kernel in zip(models, kernels, strict=True)
    ]
    gradient = torch.randn(4, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model.weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(models[0].weight, models[1].weight)


def test_a_device_without_a_fused_kernel_takes_the_one_over_many_tensors() -> None:
    assert fastest_kernel(torch.device("meta")) == {"foreach": True}
