"""A frozen base in 8 bits: LLM.int8's weights, one scale a row, with activations left as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.technique import NO_BITSANDBYTES, Card, Context, Family, Fidelity, Seams, Stage, Technique
from snugfit.kit.adapters.adapters import warn_without_adapters
from snugfit.kit.quantized.quantize import bitsandbytes_ops, dequantised, loading, quantise_, quantise_read_

LARGEST = 127


@dataclass(frozen=True)
class Int8Format:
    """Each weight as a whole number of 127ths of the largest in its row."""

    @property
    def unit(self) -> int:
        return 1

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        # in 16 bit, as LLM.int8 does it: what is loaded so has the same numbers
        packed, absmax, _ = bitsandbytes_ops().int8_vectorwise_quant(weight.half().contiguous())
        return {"packed": packed, "absmax": absmax}

    def unpack(self, tensors: Mapping[str, Tensor], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        scale = (tensors["absmax"] / LARGEST).unsqueeze(1)
        rounded = torch.float32 if dtype == torch.float64 else dtype
        return (
            tensors["packed"].to(rounded).mul_(scale).to(dtype)
        )  # an integer to 127 is exact in any of them

    def loaded(self, layer: nn.Module, name: str) -> dict[str, Tensor] | None:
        if type(layer).__name__ != "Linear8bitLt":
            return None
        weight: Any = layer.weight
        # it moves from the weight to its state at the first forward
        absmax = weight.SCB if weight.SCB is not None else layer.state.SCB  # type: ignore[union-attr]
        return {"packed": weight.data, "absmax": absmax}


def int8_(model: nn.Module, skip: Sequence[str] = ()) -> nn.Module:
    """Quantise and freeze the weights of linear layers and of experts in place, one at a time; their biases stay as they are.

    Left whole are embeddings, a language model's output, a classifier's head, the last linear layer, weights that are
    shared, and the projection in `nn.MultiheadAttention`, which is never called.

    Args:
        skip: patterns of modules' names that stay whole.
    Raises:
        SettingError: a pattern matches nothing, or no linear layer or expert is left.
        MissingExtra: bitsandbytes is not installed.
    Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1, row by row, by the kernel of bitsandbytes; unlike there,
        activations are not rounded.

    >>> model = int8_(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 2)))
    >>> {name: (parameter.dtype, parameter.numel()) for name, parameter in model[0].named_parameters()}
    {'packed': (torch.int8, 4096), 'absmax': (torch.int32, 64)}
    """
    return quantise_(model, Int8Format(), skip, "int8")


@dataclass(frozen=True)
class Int8(Technique):
    """Keep the weights of a frozen base in 8 bits; what is saved has them whole again."""

    skip: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="int8",
        summary="Freezes the weights of linear layers and experts in 8 bits, for adapters to be trained beside them.",
        aliases=("LLM.int8()", "load_in_8bit", "8-bit base model"),
        family=Family.NUMERICS,
        source="Dettmers et al. 2022 (LLM.int8), arXiv:2208.07339; bitsandbytes",
        seams=("export",),
        stages=(Stage.QUANTISE,),
        not_on=NO_BITSANDBYTES,
        fidelity=Fidelity.QUANTIZED,
        saves_memory=True,
        cost="weights are rounded to 255 levels a row; each is made whole once in forward and once in backward",
        use_when="adapters (lora) are trained on a base that fits in 8 bits: eight times as near to it as nf4",
    )

    def prepare(self, model: nn.Module) -> nn.Module:
        return int8_(model, self.skip)

    def loading(self, model: nn.Module) -> Mapping[str, Any]:
        return loading(model, self.skip, self.card.name, load_in_8bit=True)

    def read(self, model: nn.Module, name: str) -> None:
        quantise_read_(model, name, Int8Format(), self.skip, self.card.name)

    def seams(self, context: Context) -> Seams:
        warn_without_adapters(context.model, self.card.name)
        return Seams(export=dequantised)
