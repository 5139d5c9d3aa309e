"""QLoRA's frozen base: linear layers in 4-bit NormalFloat, with their scales quantised too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import is_fake
from snugfit.core.technique import NO_BITSANDBYTES, Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.adapters.adapters import warn_without_adapters
from snugfit.kit.quantized.quantize import bitsandbytes_ops, dequantised, loading, quantise_, quantise_read_

BLOCK = 64
"""Neighbours in a row that share a scale."""

SCALE_BLOCK = 256
"""Scales that share one of their own, under double quantisation."""


@dataclass(frozen=True)
class NF4Format:
    """Two weights a byte: each the nearest of 16 quantiles of a normal distribution, times the largest of its block.

    `double`: the scales are kept in 8 bits, as differences from their mean.
    """

    double: bool = True

    @property
    def unit(self) -> int:
        return BLOCK * SCALE_BLOCK if self.double else BLOCK

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        ops = bitsandbytes_ops()
        packed, absmax = ops.quantize_4bit(weight.float().contiguous(), BLOCK, "nf4", torch.uint8)
        if not self.double:
            return {"packed": packed, "absmax": absmax}
        mean = absmax.mean()
        scales, nested = ops.quantize_blockwise(absmax - mean, _scale_code(absmax), SCALE_BLOCK)
        return {"packed": packed, "absmax": scales, "nested_absmax": nested, "mean": mean}

    def unpack(self, tensors: Mapping[str, Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        ops, absmax = bitsandbytes_ops(), tensors["absmax"]
        if self.double:
            nested = tensors["nested_absmax"]
            code = _scale_code(nested)
            absmax = ops.dequantize_blockwise(absmax, nested, code, SCALE_BLOCK, torch.float32)
            means = tensors["mean"].view(-1, 1)  # of several matrices, each with its own
            absmax = (absmax.view(len(means), -1) + means).flatten()
        rounded = torch.float32 if dtype == torch.float64 else dtype
        # asked for rows of a block each, or for one row: bitsandbytes 0.50 takes the wrong scales on some processors where
        # rows end within a block, and compiles a kernel of its own for an odd number
        size = shape[0] * shape[1]
        even = size + size % 2
        rows = (even // BLOCK, BLOCK) if even % BLOCK == 0 else (1, even)
        whole: Tensor = ops.dequantize_4bit(tensors["packed"], absmax, BLOCK, "nf4", rows, rounded)
        return whole.flatten()[:size].view(shape).to(dtype)

    def loaded(self, layer: nn.Module, name: str) -> dict[str, Tensor] | None:
        if type(layer).__name__ != "Linear4bit":
            return None
        weight: Any = layer.weight
        state = weight.quant_state
        layout = (state.quant_type, state.blocksize, state.nested)
        if layout != ("nf4", BLOCK, self.double):
            raise SettingError(
                "nf4",
                f"'{name}' was loaded as {layout[0]} in blocks of {layout[1]}, {('' if layout[2] else 'not ')}doubly "
                f"quantised, and nf4.double is {self.double}",
                "Load the model whole.",
            )
        packed = weight.data.view(torch.uint8)
        if not self.double:
            return {"packed": packed, "absmax": state.absmax}
        nested = state.state2.absmax
        return {"packed": packed, "absmax": state.absmax, "nested_absmax": nested, "mean": state.offset}


def nf4_(model: nn.Module, double: bool = True, skip: Sequence[str] = ()) -> nn.Module:
    """Quantise and freeze the weights of linear layers and of experts in place, one at a time; their biases stay as they are.

    Left whole are embeddings, a language model's output, a classifier's head, the last linear layer, weights that are
    shared, and the projection in `nn.MultiheadAttention`, which is never called.

    Args:
        double: quantise the scales too: 4.127 bits a weight instead of 4.5.
        skip: patterns of modules' names that stay whole.
    Raises:
        SettingError: a pattern matches nothing, or no linear layer or expert is left.
        MissingExtra: bitsandbytes is not installed.
    Source: Dettmers et al. 2023, arXiv:2305.14314; by the kernels of bitsandbytes.

    >>> model = nf4_(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2)))
    >>> {name: (parameter.dtype, parameter.numel()) for name, parameter in model[0].named_parameters()}
    {'packed': (torch.uint8, 2048), 'absmax': (torch.uint8, 64), 'nested_absmax': (torch.int32, 1), 'mean': (torch.int32, 1)}
    """
    return quantise_(model, NF4Format(double), skip, "nf4")


_codes: dict[torch.device, Tensor] = {}


def _scale_code(like: Tensor) -> Tensor:
    """Return the 256 numbers that a quantised scale may be, on the device of `like`."""
    if is_fake(like):
        return like.new_empty(256, dtype=torch.float32)
    if like.device not in _codes:
        from bitsandbytes.functional import create_dynamic_map

        _codes[like.device] = create_dynamic_map().to(like.device)
    return _codes[like.device]


@dataclass(frozen=True)
class NF4(Technique):
    """Keep the weights of a frozen base in 4 bits; what is saved has them whole again."""

    double: bool = True
    skip: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="nf4",
        summary="Freezes the weights of linear layers and experts in 4 bits (QLoRA's base), for adapters to be trained beside them.",
        aliases=("QLoRA", "load_in_4bit", "4-bit base model", "BitsAndBytesConfig"),
        family=Family.NUMERICS,
        source="Dettmers et al. 2023 (QLoRA), arXiv:2305.14314; bitsandbytes",
        seams=("export",),
        stages=(Stage.QUANTISE,),
        not_on=NO_BITSANDBYTES,
        fidelity=Fidelity.QUANTIZED,
        saves_memory=True,
        cost="weights are rounded to 16 levels a block; each is made whole once in forward and once in backward",
        use_when="the base alone fills the device, and adapters (lora) are trained on it",
    )

    def prepare(self, model: nn.Module) -> nn.Module:
        return nf4_(model, self.double, self.skip)

    def loading(self, model: nn.Module) -> Mapping[str, Any]:
        config = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": self.double,
        }
        return loading(model, self.skip, self.card.name, **config)

    def read(self, model: nn.Module, name: str) -> None:
        quantise_read_(model, name, NF4Format(self.double), self.skip, self.card.name)

    def seams(self, context: Context) -> Seams:
        warn_without_adapters(context.model, self.card.name)
        return Seams(export=dequantised)
