"""QLoRA's base: Dettmers et al. 2023, arXiv:2305.14314, section 3 and appendix E; the rest of the model trains by plain SGD.

The scales are quantised as bitsandbytes does it, to a signed 8-bit number of dynamic exponent (Dettmers 2015,
arXiv:1511.04561, section 2.4), where the paper's text has an 8-bit float.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd

NEAR_FULL_PRECISION = 0.3  # a weight is up to 0.15 of the largest in its block away, and out of the norm
CHANGES_WEIGHTS = True
BLOCK, SCALES = 64, 256

LEVELS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
"""NF4: appendix E."""


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    names = quantised_layers(model)
    return train_with_frozen(model, windows, names, lambda weight: rounded(weight, settings["double"]))


def train_with_frozen(model: nn.Module, windows: list[Window], names: list[str], rounded: Any) -> Trained:
    """The weights of these layers are rounded and stay; all others train."""
    with torch.no_grad():
        for name in names:
            weight = model.get_submodule(name).weight
            weight.copy_(rounded(weight))

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        gradient, loss = gradient_of(model, window)
        return {name: g for name, g in gradient.items() if name.removesuffix(".weight") not in names}, loss

    return plain_sgd(model, windows, direction)


def quantised_layers(model: nn.Module) -> list[str]:
    """The linear layers but the last, those in attention (called by nobody), and those that share their weight."""
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    last = list(linear)[-1]
    return [name for name in linear if name != last and not name.endswith("out_proj")]


def rounded(weight: Tensor, double: bool) -> Tensor:
    """The weight after quantising and back, in float32: row after row, in blocks across rows."""
    flat = weight.detach().float().flatten()
    blocks = flat.split(BLOCK)
    scales = torch.stack([block.abs().max() for block in blocks])
    if double:
        scales = rounded_scales(scales)
    levels = torch.tensor(LEVELS)
    found = []
    for block, scale in zip(blocks, scales, strict=True):
        largest = block.abs().max()
        for value in block:
            found.append(levels[nearest(value / largest, levels)] * scale)
    return torch.stack(found).view_as(weight).to(weight.dtype)


def rounded_scales(scales: Tensor) -> Tensor:
    """`mean + largest * level`, with the differences from the mean in blocks of 256."""
    mean = scales.mean()
    levels = tree()
    found = []
    for block in (scales - mean).split(SCALES):
        largest = block.abs().max()
        found += [levels[nearest(value / largest, levels)] * largest if largest else value for value in block]
    return torch.stack(found) + mean


def tree() -> Tensor:
    """Signed numbers of 8 bits: after each of seven powers of ten as many steps between 0.1 and 1 as bits are left for."""
    found = [0.0, 1.0]
    for bits in range(7):
        edges = torch.linspace(0.1, 1, 2**bits + 1)
        for middle in 10 ** (bits - 6) * (edges[1:] + edges[:-1]) / 2:
            found += [float(middle), -float(middle)]
    return torch.tensor(sorted(found))


def nearest(value: Tensor, levels: Tensor) -> int:
    return int((levels - value).abs().argmin())
