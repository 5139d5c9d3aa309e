"""What autocast makes of weights: kept for backward, or made again."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from snugfit.kit.precision.autocast import casting_anew, weights_cast_again
from snugfit.system.allocation_counter import AllocatedBytes

WIDTH, LAYERS = 64, 4
COPIES = 2 * WIDTH * WIDTH * LAYERS
"""Bytes of the weights in 16 bit."""


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3))


def trained(model: nn.Module, again: bool) -> tuple[int, list[Tensor]]:
    """The bytes that are kept from forward to backward, and the gradients."""
    inputs = torch.linspace(-1, 1, 2 * WIDTH).view(2, WIDTH)
    with AllocatedBytes(torch.device("cpu")) as allocated, ExitStack() as stack:
        if again:
            stack.enter_context(casting_anew())
            stack.enter_context(weights_cast_again())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(inputs).float().square().sum()
        saved_bytes = allocated.history[-1]
        loss.backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return saved_bytes, gradients


def test_a_weight_that_is_cast_again_in_backward_is_not_kept_and_has_the_same_gradient() -> None:
    saved_bytes, expected = trained(net(), again=False)
    less, gradients = trained(net(), again=True)
    assert saved_bytes - less >= COPIES
    assert len(gradients) == len(expected) == 4 * LAYERS + 2
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


def test_a_weight_that_is_given_up_meanwhile_is_looked_at_in_backward_only() -> None:
    layer, inputs = nn.Linear(2, 2, bias=False), torch.ones(1, 2, requires_grad=True)
    with casting_anew(), weights_cast_again():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = layer(inputs)
        with torch.no_grad():
            layer.weight.fill_(3.0)
        outputs.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.tolist() == [[6.0, 6.0]]


def test_what_is_computed_from_a_weight_before_it_is_cast_is_kept() -> None:
    weight = nn.Parameter(torch.full((2, 2), 2.0))
    inputs = torch.ones(1, 2, requires_grad=True)
    with casting_anew(), weights_cast_again(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = inputs @ (weight * 1.5)
    outputs.sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.tolist() == [[6.0, 6.0]]
