"""Pictures of which squares are hidden: drawn anew in each epoch, and once where they are scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snugfit.data.examples import DrawnView, Examples, FromRows
from snugfit.data.pictures.labelled_pictures import INPUT, Decode, Pictures, PictureSettings, files_of
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import opened
from snugfit.data.report import DataReport
from snugfit.errors import DataError, SettingError

MASK = "mask"
PROBABILITY = 0.6
"""Part of a picture that is hidden, in the paper."""

_PATCHES = 2
"""Patches of a hidden square on each side, as in the paper: a single patch is told from its neighbours."""


@dataclass(frozen=True)
class Squares:
    """The way in which patches are hidden: so many squares as `probability` says, at least one and not all, of two patches on each side, or one where they are odd.

    Args:
        down: patches of a picture from top to bottom.
        across: from left to right.

    Source: Xie et al. 2022 (SimMIM), arXiv:2111.09886, section 3.2.
    """

    down: int
    across: int
    probability: float = PROBABILITY

    @classmethod
    def of(cls, picture_format: PictureFormat, patch: int, probability: float) -> Squares:
        """Return those of pictures of this format, cut into patches of so many pixels.

        Raises:
            SettingError: the pictures are no whole number of patches, or a single one.
        """
        _, height, width = picture_format.shape
        if height % patch or width % patch or height * width <= patch * patch:
            raise SettingError(
                "data.size",
                f"gives pictures of {height} x {width} pixels, and the model cuts them into patches of {patch} x {patch}",
                "Give a multiple of that, and more than one.",
            )
        return cls(height // patch, width // patch, probability)

    @property
    def side(self) -> int:
        """Patches of a square on each side."""
        even = self.down % _PATCHES == 0 and self.across % _PATCHES == 0
        return _PATCHES if even and self.down * self.across > _PATCHES**2 else 1

    def drawn(self) -> Tensor:
        """Return a mask, drawn from the global generator: True where a patch is hidden, shape (patches down, patches across)."""
        down, across = self.down // self.side, self.across // self.side
        count = min(math.ceil(self.probability * down * across), down * across - 1)
        hidden = torch.zeros(down * across, dtype=torch.bool)
        hidden[torch.randperm(down * across)[:count]] = True
        squares = hidden.view(down, across)
        return squares.repeat_interleave(self.side, 0).repeat_interleave(self.side, 1)


class MaskedPictures(FromRows):
    """Pictures on disk as examples: `pixel_values`, shape (channels, height, width), and `mask`, both drawn from the global generators.

    Args:
        augment: names of what is done to each picture, before its squares are hidden.
    """

    def __init__(
        self,
        rows: Examples,
        picture_format: PictureFormat,
        squares: Squares,
        augment: Sequence[str] = (),
        *,
        decode: Decode = opened,
    ) -> None:
        super().__init__(rows, alike=True)
        self.squares = squares
        self._pictures = Pictures(rows, picture_format, augment, decode=decode)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {INPUT: self._pictures[place][INPUT], MASK: self.squares.drawn()}


@dataclass(frozen=True)
class MaskedPictureData:
    """Pictures to train on, and to validate on, whose squares are drawn once and which are not changed."""

    train: MaskedPictures
    validation: DrawnView | None
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


def load_masked_pictures(
    settings: PictureSettings,
    picture_format: PictureFormat,
    squares: Squares,
    *,
    folder: Path | None = None,
) -> MaskedPictureData:
    """Read and split; classes are not read, also where folders are named by them.

    Raises:
        DataError: a source cannot be used, pictures are faulty and the policy is 'fail', or too little is left.
    """
    files = files_of(settings, None, folder)
    if not files.train or (settings.validation is not None and not files.validation):
        raise DataError(
            "data",
            f"leaves {len(files.train)} pictures to train on and {len(files.validation)} to validate on",
            "Give more pictures.",
        )
    held_out = MaskedPictures(files.validation, picture_format, squares, decode=settings.decode)
    return MaskedPictureData(
        train=MaskedPictures(files.train, picture_format, squares, settings.augment, decode=settings.decode),
        validation=DrawnView(held_out, settings.seed) if files.validation else None,
        report=files.report,
        fingerprints=files.fingerprints,
        example_rows=files.example_rows,
    )


def collate_masked(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: `pixel_values`, shape (rows, channels, height, width), and `mask`, shape (rows, patches down, patches across)."""
    return {name: torch.stack([example[name] for example in examples]) for name in (INPUT, MASK)}
