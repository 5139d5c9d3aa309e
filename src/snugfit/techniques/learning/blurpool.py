"""BlurPool: what is thinned out by a stride is blurred before, so that a shift of the image changes little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.pictures.convolutions import convolutions


def blurred(images: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    """Images (..., channels, height, width) under the filter [1, 2, 1] / 4 both ways, thinned out by a stride; edges are repeated.

    >>> blurred(torch.tensor([[[0.0, 0.0, 16.0, 0.0, 0.0]]]))
    tensor([[[0., 4., 8., 4., 0.]]])
    """
    channels = images.shape[-3]
    # made on the device, as a copy from the host would wait for it
    weights = 2 - torch.arange(-1, 2, device=images.device).abs()
    kernel = (weights.unsqueeze(1) * weights).to(images.dtype) / 16
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    return F.conv2d(padded, kernel.expand(channels, 1, 3, 3), stride=stride, groups=channels)


class BlurredMaxPool2d(nn.MaxPool2d):
    """A maximum over neighbours at each place, blurred before it is thinned out; outputs have the size of torch's."""

    def forward(self, input: Tensor) -> Tensor:
        highest = F.max_pool2d(input, self.kernel_size, 1, self.padding, self.dilation)
        return blurred(highest, self.stride)


@dataclass(frozen=True)
class BlurPool(Technique):
    """Blur the inputs of convolutions with a stride, and what a maximum over neighbours gives before it is thinned out."""

    convs: bool = True
    max_pools: bool = True
    min_channels: int = 16

    card: ClassVar[Card] = Card(
        name="blurpool",
        summary="Blurs before each stride, so that a shift of the image changes little of what is seen in it.",
        family=Family.LEARNING,
        source="Zhang 2019, arXiv:1904.11486; convolutions as composer's BlurPool, blurred before",
        seams=(),
        stages=(Stage.LAYER,),
        kind=Kind.IMAGES,
        cost="a pass over the inputs of each convolution with a stride, and a maximum at each place",
        use_when="convolutional nets that are trained from scratch, above all on high-resolution details",
    )

    def __post_init__(self) -> None:
        self.require("min_channels", self.min_channels >= 1, "at least 1")
        self.require("max_pools", self.convs or self.max_pools, "true where convs is false")

    @classmethod
    def example(cls) -> Self:
        return cls(min_channels=2)

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        wide = convolutions(model, (), "blurpool.convs", self.min_channels) if self.convs else {}
        convs = [conv for conv in wide.values() if max(conv.stride) > 1]
        pools = [module for module in model.modules() if self.max_pools and _is_thinning(module)]
        if not convs and not pools:
            raise SettingError(
                "blurpool",
                f"has nothing to change: the model has no nn.MaxPool2d and no nn.Conv2d with a stride and {self.min_channels} channels "
                "(min_channels) on both sides that it may change",
                "Lower min_channels, or remove it.",
            )
        for conv in convs:
            conv.register_forward_pre_hook(_blur_input)
        for pool in pools:
            pool.__class__ = BlurredMaxPool2d
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()


def _is_thinning(module: nn.Module) -> bool:
    """Return whether it is torch's maximum over neighbours with a stride, without indices and rounded down, as `BlurredMaxPool2d` is."""
    if type(module) is not nn.MaxPool2d or module.return_indices or module.ceil_mode:
        return False
    stride = module.stride
    return (stride if isinstance(stride, int) else max(stride)) > 1


def _blur_input(_conv: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (blurred(inputs[0]), *inputs[1:])
