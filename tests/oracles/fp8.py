"""fp8 training (Micikevicius et al. 2022, arXiv:2209.05433): of a linear layer `y = x Wᵀ`, forward and the gradient of `x` take
operands in e4m3, each token and each row of `W` with a scale of its own; the gradient of `W` takes what was not rounded.

All other products take operands rounded to bf16. The roundings are made by hand, in a float32 loop without autocast, which
rounds more: the two agree as bf16 numbers do, but where an operand that is rounded otherwise in bf16 falls to the other side in e4m3.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

NOT_HERE = ("emulate",)  # to turn it off needs CUDA
RELATIVE_TOLERANCE = 0.1
NEAR_FULL_PRECISION = 0.15  # each operand is off by up to 2^-4 of itself
# float64 would be rounded too; what micro-batches add up was rounded to bf16
DTYPE = torch.float32
SAME_WITHIN = 0.05
# a gradient that is nothing but rounding, such as a key bias's, is made a whole step of by Adam and its kin
SAME_FLOOR = 1.0

LARGEST = 448.0
FRACTION = 3
LOWEST_EXPONENT = -6


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """Gradients and weights stay in float32; only what is multiplied is rounded."""
    assert settings["emulate"] and not settings["skip"]
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    in_fp8 = [
        module.weight
        for module in model.modules()
        if type(module) is nn.Linear
        and module is not head
        and min(module.weight.shape) >= settings["smallest"]
    ]
    with rounded_products(in_fp8):
        return plain_sgd(model, windows, gradient_of)


@contextmanager
def rounded_products(in_fp8: list[nn.Parameter]) -> Iterator[None]:
    original = F.linear

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if any(weight is each for each in in_fp8):
            product = Product.apply(bf16(inputs), weight)
        else:
            product = original(bf16(inputs), bf16(weight))
        return bf16(product if bias is None else product + bf16(bias))

    F.linear = linear
    try:
        yield
    finally:
        F.linear = original


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return e4m3_by_rows(inputs) @ e4m3_by_rows(weight).T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        inputs, weight = ctx.saved_tensors
        by_inputs = e4m3_by_rows(gradient) @ e4m3(weight)
        tokens, outputs = inputs.reshape(-1, inputs.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        return by_inputs, sum(torch.outer(*pair) for pair in zip(outputs, tokens, strict=True))


def e4m3_by_rows(tensor: Tensor) -> Tensor:
    """Each row by its own largest."""
    rows = tensor.reshape(-1, tensor.shape[-1])
    return torch.stack([e4m3(row) for row in rows]).view(tensor.shape)


def e4m3(tensor: Tensor) -> Tensor:
    """To the nearest number `±2^e·(1 + m/8)` with `e ≥ −6`, times the power of two with which the largest just fits below 448."""
    largest = tensor.abs().max().double().clamp(min=1e-12)
    scale = 2 ** torch.floor(torch.log2(LARGEST / largest))
    scaled = tensor.double() * scale
    exponent = torch.floor(torch.log2(scaled.abs().clamp(min=2.0**LOWEST_EXPONENT)))
    step = 2 ** (exponent - FRACTION)
    return (torch.round(scaled / step) * step / scale).to(tensor.dtype)


def bf16(tensor: Tensor) -> Tensor:
    """To the nearest bf16 number, and back."""
    return tensor.bfloat16().to(tensor.dtype)
