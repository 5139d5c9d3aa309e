"""Weight standardisation: each filter of a convolution has mean 0 and variance 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_modules
from snugfit.kit.placement import host_copy

EPSILON = 1e-5


def standardized(weight: Tensor, scaled: bool = False) -> Tensor:
    """Return filters (outputs, inputs, ...) each less its mean and divided by its deviation; computed in float32 at least.

    Args:
        scaled: divide by the root of the number of a filter's weights too, so that outputs have the size of inputs.

    >>> standardized(torch.tensor([[[1.0, 3.0, 1.0, 3.0]]]))
    tensor([[[-1.0000,  1.0000, -1.0000,  1.0000]]])
    >>> standardized(torch.tensor([[[1.0, 3.0, 1.0, 3.0]]]), scaled=True)
    tensor([[[-0.5000,  0.5000, -0.5000,  0.5000]]])
    """
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    variance, mean = torch.var_mean(wide, dim=tuple(range(1, weight.ndim)), keepdim=True, unbiased=False)
    size = math.sqrt(weight[0].numel()) if scaled else 1.0
    return ((wide - mean) * (variance + EPSILON).rsqrt() / size).to(weight.dtype)


class StandardizedConv(nn.Module):
    """A convolution of torch's that computes with its weight standardised; it keeps and trains the weight as it is."""

    scaled: bool

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        outputs: Tensor = super()._conv_forward(input, standardized(weight, self.scaled), bias)  # type: ignore[misc]
        return outputs


class StandardizedConv1d(StandardizedConv, nn.Conv1d):
    """Along one dimension."""


class StandardizedConv2d(StandardizedConv, nn.Conv2d):
    """Over images."""


class StandardizedConv3d(StandardizedConv, nn.Conv3d):
    """Over volumes."""


_STANDARDIZED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: StandardizedConv1d,
    nn.Conv2d: StandardizedConv2d,
    nn.Conv3d: StandardizedConv3d,
}
_STOCK = {changed: stock for stock, changed in _STANDARDIZED.items()}


@torch.no_grad()
def with_stock_convs(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose convolutions are torch's own and hold the filters that they computed with."""
    copied = host_copy(model)
    filters: dict[
        int, tuple[nn.Parameter, nn.Parameter]
    ] = {}  # by the weight they are of, which convolutions may share
    for conv in copied.modules():
        if isinstance(conv, StandardizedConv):
            weight: nn.Parameter = conv.weight  # type: ignore[assignment]
            own = nn.Parameter(standardized(weight, conv.scaled), weight.requires_grad)
            _, conv.weight = filters.setdefault(id(weight), (weight, own))
            del conv.scaled
            conv.__class__ = _STOCK[type(conv)]  # type: ignore[assignment]
    return copied


@dataclass(frozen=True)
class WeightStandardization(Technique):
    """Let convolutions compute with filters of mean 0 and variance 1."""

    scaled: bool = True
    all_but: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="weight_standardization",
        summary="Gives each filter of a convolution mean 0 and variance 1, which smooths training beside group norm.",
        aliases=("weight standardisation",),
        family=Family.LEARNING,
        source="Qiao et al. 2019, arXiv:1903.10520, equations 3 to 5; scaled as by Brock et al. 2021, arXiv:2101.08692",
        seams=("export",),
        stages=(Stage.LAYER,),
        kind=Kind.IMAGES,
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "what an adapter adds to a filter would be standardised with it, once merged. Remove one.",
        ),
        cost="a pass over the weights of convolutions in each forward; nothing where images are large",
        use_when="convolutional nets from scratch with a norm behind each convolution, group norm above all",
    )

    @classmethod
    def example(cls) -> Self:
        return cls(all_but=("blocks*",))

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        left_out = set(find_modules(model, self.all_but, "weight_standardization.all_but"))
        wanted = [
            module
            for name, module in model.named_modules()
            if type(module) in _STANDARDIZED and name not in left_out and module.weight[0].numel() > 1
        ]
        if not wanted:
            raise SettingError(
                "weight_standardization",
                "has nothing to change: the model has no nn.Conv1d, 2d or 3d, but those that it leaves out, and those of a single weight a filter",
                "Remove it.",
            )
        for conv in wanted:
            conv.__class__ = _STANDARDIZED[type(conv)]
            conv.scaled = self.scaled
        return model

    def seams(self, context: Context) -> Seams:
        return Seams(export=with_stock_convs)
