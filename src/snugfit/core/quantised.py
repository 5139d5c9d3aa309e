"""Frozen linear layers whose weight is kept in a smaller format, and made whole where it is used.

What a format keeps of a weight are frozen parameters of the layer, all of them integers; numbers that are not go by their
bits. So they move, are copied, saved, loaded and streamed as parameters are, and no cast of a model changes them.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.layers import (
    base_of,
    is_conv1d,
    last_linear,
    output_layer,
    replace_module,
    stock_heads,
    unsuitable,
)
from snugfit.core.names import find_modules
from snugfit.core.placing import host_copy
from snugfit.errors import MissingExtra, SettingError


class WeightFormat(Protocol):
    """How a weight is kept. Two formats of the same settings are equal."""

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        """What is kept of a weight (outputs, inputs), by name: integers and float32."""
        ...

    def unpack(self, kept: Mapping[str, Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """The weight again, rounded once from float32 to `dtype`."""
        ...

    def loaded(self, layer: nn.Module, name: str) -> dict[str, Tensor] | None:
        """What is kept where bitsandbytes holds the layer in this format; None where it is no layer of bitsandbytes."""
        ...


class QuantisedLinear(nn.Linear):
    """A linear layer with a frozen weight in `format`; it computes in the type of its inputs, or in autocast's.

    Forward and backward each make the weight whole and let it go. The bias stays as it was. `weight` is a whole copy, for
    whoever reads it.

    Args:
        kept: what the format keeps of the weight.
        dtype: of the weight before; a cast of the layer changes what type `weight` is in.
        of_conv1d: it stands for transformers' Conv1D, whose weight is (inputs, outputs).
    """

    def __init__(
        self,
        format: WeightFormat,
        kept: Mapping[str, Tensor],
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
        self._kept = tuple(kept)
        self.register_parameter("bias", bias)
        for name, tensor in kept.items():
            stored = tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor
            self.register_parameter(name, nn.Parameter(stored, requires_grad=False))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.unpacked([getattr(self, name) for name in self._kept], self.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantisedLinear:
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, input: Tensor) -> Tensor:
        device = input.device.type
        if torch.is_autocast_enabled(device) and input.dtype != torch.float64:  # which autocast leaves alone
            input = input.to(torch.get_autocast_dtype(device))
        product: Tensor = _Product.apply(input, self.unpacked, *(getattr(self, name) for name in self._kept))  # type: ignore[no-untyped-call]
        return product if self.bias is None else product.add_(self.bias)

    def unpacked(self, kept: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The weight (outputs, inputs) that these parameters of the layer stand for."""
        named = {
            name: tensor.view(torch.float32) if tensor.dtype == torch.int32 else tensor
            for name, tensor in zip(self._kept, kept, strict=True)
        }
        with torch.no_grad():
            return self.format.unpack(named, (self.out_features, self.in_features), dtype)

    def whole(self) -> nn.Linear:
        """A plain linear layer with the weight, and the same bias."""
        kind = _WasConv1D if self.of_conv1d else nn.Linear
        linear = kind(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight)
        linear.bias = self.bias
        return linear.train(self.training)


class _Product(torch.autograd.Function):
    """`inputs @ weight.T`, which saves for backward what is kept of the weight, and not the weight."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, unpacked: Callable[[Sequence[Tensor], torch.dtype], Tensor], *kept: Tensor
    ) -> Tensor:
        ctx.unpacked = unpacked
        ctx.save_for_backward(*kept)
        return F.linear(inputs, unpacked(kept, inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        saved = ctx.saved_tensors  # once: a block that is computed again for it gives it once
        weight = ctx.unpacked(saved, gradient.dtype)
        return gradient @ weight, None, *(None for _ in saved)


@contextmanager
def weights_unread() -> Iterator[None]:
    """Within, `weight` of quantised layers has its shape, type and device, and no numbers: for a library that asks for nothing else,
    many times, and would have it made whole each time."""

    def shape_alone(layer: QuantisedLinear) -> Tensor:
        one = torch.empty((), dtype=layer.dtype, device=next(layer.parameters()).device)
        return one.expand(layer.out_features, layer.in_features)

    whole = QuantisedLinear.weight
    QuantisedLinear.weight = property(shape_alone)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        QuantisedLinear.weight = whole  # type: ignore[method-assign]


class _WasConv1D(nn.Linear):
    """A whole layer on its way back to transformers' Conv1D."""


def quantise_(model: nn.Module, format: WeightFormat, skip: Sequence[str], technique: str) -> nn.Module:
    """Quantise the linear layers of `model` in place, one after the other; those that were loaded so are taken over.

    Raises:
        SettingError: a pattern of `skip` matches nothing, no linear layer is there, or the model has adapters.
    """
    if any(base_of(module) is not module for module in model.modules()):
        raise SettingError(
            f"{technique}: the model has adapters already. Quantise it first: give {technique} the model without them."
        )
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    for name, module in list(model.named_modules()):
        kept = format.loaded(module, name)
        if kept is not None:
            assert isinstance(module, nn.Linear)
            shape = (module.out_features, module.in_features)
            of_conv1d = getattr(module, "source_cls", nn.Linear).__name__ == "Conv1D"
            taken = QuantisedLinear(format, kept, shape, dtype, module.bias, of_conv1d=of_conv1d)
            if taken.bias is not None:
                taken.bias.requires_grad_(True)
            replace_module(model, name, taken.train(module.training))
    _leave_bitsandbytes(model)
    for name in quantisable(model, skip, technique):
        replace_module(model, name, _quantised(model.get_submodule(name), format))
    if not any(isinstance(module, QuantisedLinear) for module in model.modules()):
        raise SettingError(
            f"{technique}: the model has no linear layer to quantise beside its head, or skip names them all. Remove {technique}."
        )
    return model


def quantisable(model: nn.Module, skip: Sequence[str], technique: str) -> list[str]:
    """Names of the plain linear layers, and of transformers' Conv1D, whose weight is theirs alone.

    Left whole are what `skip` names, a language model's output, a stock classifier's head, and the last linear layer.

    Raises:
        SettingError: a pattern of `skip` matches nothing.
    """
    left = [*find_modules(model, skip, f"{technique}.skip"), *stock_heads(model)]
    inside = tuple(f"{name}." for name in left)
    refused = unsuitable(model)
    whole = (output_layer(model), last_linear(model))
    return [
        name
        for name in _linear(model)
        if name not in refused and name not in left and not name.startswith(inside)
        if model.get_submodule(name) not in whole
    ]


def loading(model: nn.Module, skip: Sequence[str], technique: str, **config: Any) -> dict[str, Any]:
    """Arguments for `from_pretrained` by which bitsandbytes quantises the same layers one by one, on the host.

    Args:
        model: of the same architecture; may be on the meta device.
        config: of transformers' `BitsAndBytesConfig`.
    Raises:
        MissingExtra: bitsandbytes or accelerate is not installed.
    """
    bitsandbytes_ops()
    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtra("accelerate", "quantization")
    from transformers import BitsAndBytesConfig

    wanted = quantisable(model, skip, technique)
    others = [name for name in _linear(model) if name not in wanted]
    # one expression: a name in the list would stand for each that ends with it
    left = [f"(?:{'|'.join(name.replace('.', '[.]') for name in others)})$"] if others else []
    return {
        "quantization_config": BitsAndBytesConfig(**config, llm_int8_skip_modules=left),
        "device_map": {"": "cpu"},
    }


def weight_sizes(model: nn.Module) -> dict[nn.Parameter, int]:
    """Of each parameter that a format keeps in place of a weight, how many numbers of the weight it stands for: the first of
    a layer for all of them, the others for none."""
    found: dict[nn.Parameter, int] = {}
    for module in model.modules():
        if isinstance(module, QuantisedLinear):
            size = module.out_features * module.in_features
            kept = [parameter for name, parameter in module.named_parameters() if name != "bias"]
            found.update((parameter, 0 if place else size) for place, parameter in enumerate(kept))
    return found


def dequantise_(model: nn.Module) -> nn.Module:
    """Make the quantised weights of `model` whole in place, in the type they had; beside adapters, as linear layers."""
    for name, module in list(model.named_modules()):
        if isinstance(module, QuantisedLinear):
            whole = module.whole()
            replace_module(model, name, whole if name.endswith("base_layer") else in_stock_form(whole))
    return model


def dequantised(model: nn.Module) -> nn.Module:
    """A copy of the model with whole weights, as its own library would load it; the model itself where nothing is quantised."""
    if not any(isinstance(module, QuantisedLinear) for module in model.modules()):
        return model
    return dequantise_(host_copy(model)).requires_grad_(True)


def in_stock_form(layer: nn.Module) -> nn.Module:
    """The layer as its library made it, where it was made whole and is a Conv1D."""
    if not isinstance(layer, _WasConv1D):
        return layer
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        made: nn.Module = Conv1D(layer.out_features, layer.in_features)
    made.weight = nn.Parameter(layer.weight.detach().T.contiguous())
    made.bias = layer.bias
    return made.train(layer.training)


def bitsandbytes_ops() -> Any:
    """The operators of bitsandbytes, which run on tensors without numbers too.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "quantization")
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    logger.disabled = True  # it misses a kernel of the hub, for inference on some processors
    import bitsandbytes  # noqa: F401 (registers them)

    return torch.ops.bitsandbytes


def _linear(model: nn.Module) -> list[str]:
    return [
        name
        for name, module in model.named_modules()
        if name and (type(module) is nn.Linear or is_conv1d(module))
    ]


def _quantised(layer: nn.Module, format: WeightFormat) -> QuantisedLinear:
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor) and (bias is None or isinstance(bias, nn.Parameter))
    whole = weight.detach().T if is_conv1d(layer) else weight.detach()
    kept = format.pack(whole)
    return QuantisedLinear(
        format, kept, (whole.shape[0], whole.shape[1]), whole.dtype, bias, of_conv1d=is_conv1d(layer)
    ).train(layer.training)


def _leave_bitsandbytes(model: nn.Module) -> None:
    """Transformers is to take the model for what it is now: plain, but for some layers."""
    for name in (
        "hf_quantizer",
        "hf_device_map",
        "is_quantized",
        "quantization_method",
        "is_loaded_in_4bit",
        "is_loaded_in_8bit",
    ):
        model.__dict__.pop(name, None)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
