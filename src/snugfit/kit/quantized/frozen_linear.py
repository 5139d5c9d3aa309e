"""Frozen linear layers whose weight is kept in a smaller format, and made whole where it is used.

What a format keeps of a weight are frozen parameters of the layer, all of them integers; numbers that are not go by their
bits. So they move, are copied, saved, loaded and streamed as parameters are, and no cast of a model changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.kit.phases import following


class WeightFormat(Protocol):
    """The format of a weight, hashable. Two formats of the same settings are equal."""

    @property
    def unit(self) -> int:
        """Numbers of which a matrix has a multiple where what is kept of several, side by side, is what is kept of all their rows."""
        ...

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """Return what is kept of a weight (outputs, inputs), by name: integers and float32."""
        ...

    def unpack(self, tensors: Mapping[str, Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Return the weight again, rounded once from float32 to `dtype`."""
        ...

    def loaded(self, layer: nn.Module, name: str) -> dict[str, Tensor] | None:
        """Return what is kept where bitsandbytes holds the layer in this format; None where it is no layer of bitsandbytes."""
        ...


class QuantisedLinear(nn.Linear):
    """A linear layer with a frozen weight in `format`; it computes in the type of its inputs, or in autocast's.

    Forward and backward each make the weight whole and let it go. The bias stays as it was. `weight` is a whole copy, for
    whoever reads it.

    Args:
        tensors: what the format keeps of the weight.
        dtype: of the weight before; a cast of the layer changes what type `weight` is in.
        of_conv1d: it stands for transformers' Conv1D, whose weight is (inputs, outputs).
    """

    def __init__(
        self,
        format: WeightFormat,
        tensors: Mapping[str, Tensor],
        shape: tuple[int, int],
        dtype: torch.dtype,
        bias: nn.Parameter | None,
        *,
        of_conv1d: bool = False,
    ) -> None:
        nn.Module.__init__(self)  # nn.Linear's own would make a weight
        self.out_features, self.in_features = shape
        self.format = format
        self.dtype = dtype
        self.of_conv1d = of_conv1d
        self._tensor_names = tuple(tensors)
        self.register_parameter("bias", bias)
        for name, tensor in tensors.items():
            self.register_parameter(name, nn.Parameter(as_stored(tensor), requires_grad=False))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.unpacked([getattr(self, name) for name in self._tensor_names], self.dtype)

    @property
    def numbers(self) -> int:
        """Return how many the weight has."""
        return self.out_features * self.in_features

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantisedLinear:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, input: Tensor) -> Tensor:
        device = input.device.type
        if torch.is_autocast_enabled(device) and input.dtype != torch.float64:  # which autocast leaves alone
            input = input.to(torch.get_autocast_dtype(device))
        product = frozen_product(input, self.unpacked, [getattr(self, name) for name in self._tensor_names])
        return product if self.bias is None else product.add_(self.bias)

    def unpacked(self, stored: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Return the weight (outputs, inputs) that these parameters of the layer stand for."""
        shape = self.out_features, self.in_features

        def unpack() -> Tensor:
            named = dict(zip(self._tensor_names, map(from_stored, stored), strict=True))
            return self.format.unpack(named, shape, dtype)

        with torch.no_grad():
            return following((self.format, shape, dtype), stored, unpack)

    def shape_alone(self) -> Tensor:
        """Return a tensor of the weight's shape, type and device that takes no memory: a number of what is kept stands for all, where it holds one."""
        size = self.dtype.itemsize
        stored: Tensor = getattr(self, self._tensor_names[0]).detach().view(-1).view(torch.uint8)
        if stored.numel() < size or stored.storage_offset() % size:
            one = torch.empty(1, dtype=self.dtype, device=stored.device)
        else:
            one = stored[:size].view(self.dtype)
        return one.expand(self.out_features, self.in_features)

    def whole(self) -> nn.Linear:
        """Return a plain linear layer with the weight, and the same bias."""
        kind = _WasConv1D if self.of_conv1d else nn.Linear
        linear = kind(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight)
        linear.bias = self.bias
        return linear.train(self.training)


def as_stored(tensor: Tensor) -> Tensor:
    """Return what a format keeps, as an integer: numbers that are not go by their bits."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def from_stored(stored: Tensor) -> Tensor:
    """Undo `as_stored`."""
    return stored.view(torch.float32) if stored.dtype == torch.int32 else stored


def frozen_product(
    inputs: Tensor, unpacked: Callable[[Sequence[Tensor], torch.dtype], Tensor], stored: Sequence[Tensor]
) -> Tensor:
    """Return `inputs @ weight.T`, where `unpacked` makes the weight (outputs, inputs) of what is stored, in forward and again in backward."""
    product: Tensor = _Product.apply(inputs, unpacked, *stored)  # type: ignore[no-untyped-call]
    return product


class _Product(torch.autograd.Function):
    """`inputs @ weight.T`, which saves for backward what is kept of the weight, and not the weight."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, unpacked: Callable[[Sequence[Tensor], torch.dtype], Tensor], *stored: Tensor
    ) -> Tensor:
        ctx.unpacked = unpacked
        ctx.save_for_backward(*stored)
        return F.linear(inputs, unpacked(stored, inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        saved = ctx.saved_tensors  # once: a block that is computed again for it gives it once
        weight = ctx.unpacked(saved, gradient.dtype)
        return gradient @ weight, None, *(None for _ in saved)


@contextmanager
def weights_unread() -> Iterator[None]:
    """Temporarily give `weight` of quantised layers its shape, type and device, and no numbers.

    A library that asks for nothing else, many times, would have it made whole each time.
    """
    known: dict[QuantisedLinear, Tensor] = {}

    def shape_alone(layer: QuantisedLinear) -> Tensor:
        if layer not in known:
            known[layer] = layer.shape_alone()
        return known[layer]

    whole = QuantisedLinear.weight
    QuantisedLinear.weight = property(shape_alone)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        QuantisedLinear.weight = whole  # type: ignore[method-assign]


class _WasConv1D(nn.Linear):
    """A whole layer on its way back to transformers' Conv1D."""


def in_stock_form(layer: nn.Module) -> nn.Module:
    """Return the layer as its library made it, where it was made whole and is a Conv1D."""
    if not isinstance(layer, _WasConv1D):
        return layer
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        made: nn.Module = Conv1D(layer.out_features, layer.in_features)
    made.weight = nn.Parameter(layer.weight.detach().T.contiguous())
    made.bias = layer.bias
    return made.train(layer.training)
