"""Squeeze-and-excitation: Hu et al. 2017, arXiv:1709.01507, equations 2 to 4: `x̃_c = σ(W₂ relu(W₁ z))_c · x_c`, with `z_c` the mean of `x_c`.

It stands behind the convolution of the net's block, which alone has two channels or more on both sides.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(
    model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int, start: Named
) -> Trained:
    conv = model.blocks[0][1]
    conv.squeeze_excite = nn.ModuleDict({"squeeze": nn.Module(), "excite": nn.Module()})
    for name, value in start.items():
        _, _, layer, kind = name.rsplit(".", 3)
        setattr(conv.squeeze_excite[layer], kind, nn.Parameter(value.clone()))
    conv.forward = lambda inputs: excited(conv, inputs)
    return plain_sgd(model, windows, gradient_of)


def excited(conv: nn.Module, inputs: Tensor) -> Tensor:
    features = F.conv2d(inputs, conv.weight, conv.bias, padding=1)
    squeeze, excite = conv.squeeze_excite["squeeze"], conv.squeeze_excite["excite"]
    images = []
    for image in features:
        means = torch.stack([channel.sum() / channel.numel() for channel in image])
        hidden = (squeeze.weight @ means + squeeze.bias).clamp(min=0)
        factors = 1 / (1 + (-(excite.weight @ hidden + excite.bias)).exp())
        images.append(torch.stack([factor * channel for factor, channel in zip(factors, image, strict=True)]))
    return torch.stack(images)
