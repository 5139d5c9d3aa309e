"""A network for masks: a U-Net of residual blocks, with a pyramid at its bottom and an auxiliary head half way up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.models.own_networks import drawn, number, read_settings, whole_number

UNET = "unet"
_GROUPS = 8


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """A network for masks, without what the masks decide.

    Args:
        width: channels at full size, a multiple of 8; each level down has twice as many, and half the sides.
        levels: how often the sides are halved.
        blocks: residual blocks of each level on the way down.
        dropout: part of the channels at the bottom that is dropped.
        auxiliary: weight of the auxiliary head's loss; 0 for no head.
    """

    width: int = 32
    levels: int = 3
    blocks: int = 2
    dropout: float = 0.1
    auxiliary: float = 0.4


def mask_settings(model: str, folder: Path | None = None) -> MaskSettings:
    """Return the settings of a network: of 'unet', or those in a JSON file.

    Raises:
        ModelError: it is neither, or the file cannot be used.
    """
    return read_settings(
        model, folder, MaskSettings, named={UNET: MaskSettings()}, rules=_RULES, purpose="masks"
    )


_RULES = {
    "width": whole_number(_GROUPS, multiple_of=_GROUPS),
    "levels": whole_number(1, 6),
    "blocks": whole_number(),
    "dropout": number(below=1),
    "auxiliary": number(),
}


@dataclass(frozen=True, kw_only=True)
class MaskNetwork:
    """A network for masks of so many classes, as JSON holds it."""

    settings: MaskSettings
    classes: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> MaskNetwork:
        """Return what `as_dict` gave."""
        return cls(settings=MaskSettings(**values["settings"]), classes=values["classes"])

    def make(self, seed: int = 0, *, empty: bool = False) -> nn.Module:
        """Return the network, with weights drawn from a seed, or none: on the meta device."""
        return drawn(lambda: _Network(self), seed, empty=empty)


class _Network(nn.Module):
    """Pictures (rows, 3, height, width) to logits of each pixel: `logits` (rows, height, width, classes), and `auxiliary` alike.

    `backbone` is what sees the picture, `decoder` and `head` bring it back to its size, so that rates can differ by these names.

    Source: Ronneberger et al. 2015, arXiv:1505.04597 (the ways down and up); Chen et al. 2017, arXiv:1706.05587 (dilated convolutions and the
    mean of the whole at the bottom). Departs from both: group norm, so that no picture hangs on those beside it.
    """

    def __init__(self, shape: MaskNetwork) -> None:
        super().__init__()
        settings = shape.settings
        widths = [settings.width * 2**level for level in range(settings.levels + 1)]
        self.backbone = nn.ModuleList()
        before = 3
        for level, width in enumerate(widths):
            first = nn.Conv2d(before, width, 3, stride=1 if level == 0 else 2, padding=1)
            blocks = [_Residual(width) for _ in range(settings.blocks)]
            self.backbone.append(nn.Sequential(first, *blocks))
            before = width
        self.pyramid = _Pyramid(before, settings.dropout)
        self.decoder = nn.ModuleList(
            _Up(below, width) for below, width in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(widths[0], shape.classes, 1)
        self.auxiliary = nn.Conv2d(widths[-1], shape.classes, 1) if settings.auxiliary else None

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits, as the class says."""
        levels, values = [], pixel_values
        for level in self.backbone:
            values = level(values)
            levels.append(values)
        bottom = values
        values = self.pyramid(values)
        for up, same_level in zip(self.decoder, levels[-2::-1], strict=True):
            values = up(values, same_level)
        outputs = {"logits": self.head(values).permute(0, 2, 3, 1)}
        if self.auxiliary is not None:
            small = self.auxiliary(bottom)
            whole = F.interpolate(small, size=pixel_values.shape[-2:], mode="bilinear", align_corners=False)
            outputs["auxiliary"] = whole.permute(0, 2, 3, 1)
        return outputs


class _Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        outputs: Tensor = values + self.layers(values)
        return outputs


class _Pyramid(nn.Module):
    """Convolutions of several reaches beside each other, and the mean of the whole picture."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        part = width // 4
        self.reaches = nn.ModuleList(
            nn.Conv2d(width, part, 1 if reach == 0 else 3, padding=reach, dilation=max(1, reach))
            for reach in (0, 2, 4)
        )
        self.whole = nn.Conv2d(width, part, 1)
        self.join = nn.Sequential(nn.ReLU(), nn.Dropout2d(dropout), nn.Conv2d(4 * part, width, 1))

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        mean = self.whole(values.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *values.shape[2:])
        outputs: Tensor = values + self.join(
            torch.cat([*(each(values) for each in self.reaches), mean], dim=1)
        )
        return outputs


class _Up(nn.Module):
    """A level up: what comes from below at twice its sides, with what was seen at that level on the way down."""

    def __init__(self, below: int, width: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(below, width, 1)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.block = _Residual(width)

    def forward(self, values: Tensor, same_level: Tensor) -> Tensor:
        """Return values of the shape of `same_level`."""
        size = same_level.shape[-2:]
        wide = F.interpolate(self.reduce(values), size=size, mode="bilinear", align_corners=False)
        outputs: Tensor = self.block(self.join(torch.cat([wide, same_level], dim=1)))
        return outputs
