"""Pieces of work whose time tells what a device does: products, convolutions, attention, and the operators of training steps.

Each yields single operators on operands of its own, so that several of a kind can take turns and none finds its operands in a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from snugfit.core.card import NO_BITSANDBYTES
from snugfit.kit.optimizers.foreach import fastest_kernel
from snugfit.kit.optimizers.low_bit import bitsandbytes_adamw
from snugfit.kit.quantized.quantize import bitsandbytes_ops
from snugfit.techniques.placement.recompute import recomputing

Work = Callable[[], object]
Probe = Callable[[torch.device, torch.dtype, int], Iterator[Work]]
aten = torch.ops.aten


def product(device: torch.device, dtype: torch.dtype, side: int) -> Iterator[Work]:
    """Yield the products of a linear layer, `side` square, on twice as many tokens.

    These are forward without and with a bias, and backward to input and weight.
    """
    tokens, gradient = (torch.randn(2 * side, side, device=device, dtype=dtype) for _ in range(2))
    weight = torch.randn(side, side, device=device, dtype=dtype)
    yield lambda: aten.mm(tokens, weight.t())
    yield lambda: aten.addmm(weight[0], tokens, weight.t())
    yield lambda: aten.mm(gradient, weight)
    yield lambda: aten.mm(gradient.t(), tokens)


def scaled_product(device: torch.device, dtype: torch.dtype, side: int) -> Iterator[Work]:
    """Yield the product of a linear layer in float8, `side` square, on twice as many tokens, with a scale of each operand.

    Forward and backward multiply so: the second operand lies by columns.
    """
    tokens, weight = (
        torch.randn(rows, side, device=device, dtype=torch.float32).to(dtype) for rows in (2 * side, side)
    )
    scale = torch.ones((), device=device)
    yield lambda: aten._scaled_mm(tokens, weight.t(), scale, scale, out_dtype=torch.bfloat16)


def integer_product(device: torch.device, dtype: torch.dtype, side: int) -> Iterator[Work]:
    """Yield the product of a linear layer in int8, `side` square, on twice as many tokens, added up in int32."""
    tokens, weight = (
        torch.randint(-127, 128, (rows, side), device=device, dtype=dtype) for rows in (2 * side, side)
    )
    yield lambda: aten._int_mm(tokens, weight.t())


def batched_product(device: torch.device, dtype: torch.dtype, batch: int) -> Iterator[Work]:
    """Many small products, as in attention that is not fused: 64 positions, heads of 32 numbers."""
    queries, keys = (torch.randn(batch, 64, 32, device=device, dtype=dtype) for _ in range(2))
    yield lambda: aten.bmm(queries, keys.mT)


def convolution(device: torch.device, dtype: torch.dtype, batch: int) -> Iterator[Work]:
    """Time the middle of a residual network, on 64 channels of 16×16 pixels: 3×3, and 1×1 to half of the pixels, with their backward."""
    images = torch.randn(batch, 64, 16, 16, device=device, dtype=dtype)
    for side, stride in ((3, 1), (1, 2)):
        kernel = torch.randn(64, 64, side, side, device=device, dtype=dtype)
        settings = [stride, stride], [side // 2, side // 2], [1, 1], False, [0, 0], 1
        gradient = torch.randn_like(aten.convolution(images, kernel, None, *settings))
        yield partial(aten.convolution, images, kernel, None, *settings)
        yield partial(
            aten.convolution_backward, gradient, images, kernel, None, *settings, [True, True, False]
        )


def attention(device: torch.device, dtype: torch.dtype, length: int) -> Iterator[Work]:
    """Causal fused attention of 8 heads of 64 numbers on 4 sequences, and its backward."""
    shape = (4, 8, length, 64)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    with torch.enable_grad():
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    gradient = torch.randn_like(out)
    yield lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    yield lambda: torch.autograd.grad(out, (query, key, value), gradient, retain_graph=True)


def recurrence(device: torch.device, dtype: torch.dtype, batch: int) -> Iterator[Work]:
    """Yield an LSTM of 256 numbers over 32 steps, and its backward."""
    layer = nn.LSTM(256, 256).to(device, dtype)
    with torch.enable_grad():
        out = layer(torch.randn(32, batch, 256, device=device, dtype=dtype))[0]
    inputs, weights, gradient = torch.randn_like(out), tuple(layer.parameters()), torch.randn_like(out)

    def forward() -> object:
        with torch.enable_grad():  # without it other kernels run
            return layer(inputs)

    yield forward
    yield lambda: torch.autograd.grad(out, weights, gradient, retain_graph=True)


def traffic(device: torch.device, dtype: torch.dtype, size: int) -> Iterator[Work]:
    """Yield what memory alone limits, into a new tensor and in place."""
    x, y = (torch.ones(size, device=device, dtype=dtype) for _ in range(2))
    yield lambda: aten.mul(x, y)
    yield lambda: x.mul_(y)


def operators(device: torch.device, dtype: torch.dtype, size: int) -> Iterator[Work]:
    """Yield what memory alone does not limit, on `size` numbers in rows of 256; a multiple of 8,192."""
    x, y, z = (torch.rand(size // 256, 256, device=device, dtype=dtype) + 0.1 for _ in range(3))
    yield from _activations(x, y)
    yield from _normalisations(x, y)
    yield from _optimizer(x, y, z)
    yield from _reductions(x)
    yield from _whole_weights(x)
    rows, larger = torch.randint(x.shape[0], (x.shape[0],), device=device), x > y
    yield lambda: aten.embedding(x, rows)
    yield lambda: aten.embedding_dense_backward(x, rows, x.shape[0], -1, False)
    yield lambda: aten.index.Tensor(x, [rows])
    yield lambda: aten.where(larger, x, y)
    yield lambda: aten._to_copy(x, dtype=torch.bfloat16)
    yield lambda: aten.cat([x, y], 1)
    draws = torch.empty_like(x, dtype=torch.int64)
    yield lambda: z.bernoulli_(0.9)
    yield lambda: draws.random_(-(2**63), None)


def _activations(x: Tensor, y: Tensor) -> Iterator[Work]:
    for activation in (aten.gelu, aten.silu, aten.tanh, aten.sigmoid, aten.exp, aten.rsqrt):
        yield partial(activation, x)
    yield lambda: aten.gelu_backward(y, x)
    yield lambda: aten.silu_backward(y, x)
    yield lambda: aten._softmax(x, -1, False)
    yield lambda: aten._safe_softmax(x, -1)
    yield lambda: aten._log_softmax(x, -1, False)
    yield lambda: aten._softmax_backward_data(y, x, -1, x.dtype)
    yield lambda: aten._log_softmax_backward_data(y, x, -1, x.dtype)


def _normalisations(x: Tensor, y: Tensor) -> Iterator[Work]:
    weight, bias = x.new_ones(256), x.new_zeros(256)
    _, mean, deviation = aten.native_layer_norm(x, [256], weight, bias, 1e-5)
    yield lambda: aten.native_layer_norm(x, [256], weight, bias, 1e-5)
    yield lambda: aten.native_layer_norm_backward(
        y, x, [256], mean, deviation, weight, bias, [True, True, True]
    )
    images, gradient, scale = x.view(-1, 32, 16, 16), y.view(-1, 32, 16, 16), weight[:32]
    _, center, spread = aten.native_batch_norm(images, scale, scale, None, None, True, 0.1, 1e-5)
    yield lambda: aten.native_batch_norm(images, scale, scale, None, None, True, 0.1, 1e-5)
    yield lambda: aten.native_batch_norm_backward(
        gradient, images, scale, None, None, center, spread, True, 1e-5, [True, True, True]
    )
    window = [3, 3], [2, 2], [1, 1]
    pooled, places = aten.max_pool2d_with_indices(images, *window)
    yield lambda: aten.max_pool2d_with_indices(images, *window)
    yield lambda: aten.max_pool2d_with_indices_backward(pooled, images, *window, [1, 1], False, places)


def _optimizer(x: Tensor, y: Tensor, z: Tensor) -> Iterator[Work]:
    """Yield the multi-tensor operators of AdamW, the fused one, and where bitsandbytes is installed that of states of 8 bits."""
    yield lambda: aten._foreach_sqrt([z])
    yield lambda: aten._foreach_add_.List([x], [y], alpha=0)
    yield lambda: aten._foreach_mul_.Scalar([x], 1.0)
    yield lambda: aten._foreach_div_.ScalarList([x], [1.0])
    yield lambda: aten._foreach_lerp_.Scalar([x], [y], 0.0)
    yield lambda: aten._foreach_addcmul_.Scalar([x], [y], [z], 0.0)
    yield lambda: aten._foreach_addcdiv_.Scalar([x], [y], [z], 0.0)
    step, second = x.new_ones(()), z.clone()
    fused = {"lr": 0.0, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "amsgrad": False}
    yield lambda: aten._fused_adamw_([x], [y], [z], [second], [], [step], **fused, maximize=False)
    if _has_bitsandbytes(x.device):
        weight = nn.Parameter(x.clone())
        weight.grad = y
        group = {"params": [weight], "lr": 0.0, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
        yield bitsandbytes_adamw([group], "adamw_8bit", 1, lr=0.0).step


def _has_bitsandbytes(device: torch.device) -> bool:
    """Return whether bitsandbytes is installed, and not refused there, as techniques are that need it."""
    return device.type not in NO_BITSANDBYTES and find_spec("bitsandbytes") is not None


def _whole_weights(x: Tensor) -> Iterator[Work]:
    """Yield how a weight in nf4 is made whole, in the type that a device computes in, where bitsandbytes has kernels."""
    if _has_bitsandbytes(x.device):
        packed, absmax = bitsandbytes_ops().quantize_4bit(x, 64, "nf4", torch.uint8)
        dtype = x.dtype if x.device.type == "cpu" else torch.bfloat16
        yield lambda: bitsandbytes_ops().dequantize_4bit(packed, absmax, 64, "nf4", x.shape, dtype)


def _reductions(x: Tensor) -> Iterator[Work]:
    yield lambda: aten.sum.dim_IntList(x, [0])
    yield lambda: aten.mean.dim(x, [-1], True)
    yield lambda: aten._foreach_norm([x])


def small_step(device: torch.device, layers: int) -> Work:
    """Return a training step of a model of which no operator has anything to do: what it takes is the host's time."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(layers)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, **fastest_kernel(device))
    inputs = torch.randn(4, 8, device=device)

    def step() -> None:
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def recomputed_step(device: torch.device, layers: int, keep: Collection[str] | None) -> Work:
    """Forward and backward of a block of which no operator has anything to do.

    Args:
        keep: of what is computed again in backward the kinds of operations that are not; None computes nothing again.
    """
    pieces = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(layers)]
    block = nn.Sequential(*pieces).to(device)
    inputs = torch.randn(4, 8, device=device)

    def step() -> None:
        with nullcontext() if keep is None else recomputing([block], keep):
            block(inputs).sum().backward()

    return step


def transformer_step(device: torch.device, layers: int) -> Work:
    """Return a training step of transformer blocks in half precision, of 512 tokens: on an accelerator what it takes is the host's time."""
    blocks = (nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True) for _ in range(layers))
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, **fastest_kernel(device))
    inputs = torch.randn(4, 128, 256, device=device)
    dtype = torch.bfloat16 if device.type == "cpu" else torch.float16

    def step() -> None:
        with torch.autocast(device.type, dtype):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
