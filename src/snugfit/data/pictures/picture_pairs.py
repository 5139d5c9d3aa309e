"""Pairs of views of pictures: two draws of each, which belong together."""

from __future__ import annotations

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
from snugfit.units import counted

VIEWS = 2
FEWEST = 2
"""Pictures of a part, as the others of a window are what a picture is told from."""


class PicturePairs(FromRows):
    """Pictures on disk as examples: `pixel_values`, shape (2, channels, height, width), and `labels`, numbers that tell the views of all pictures apart.

    Args:
        augment: names of what is done to each view, drawn from the global generators, one view after the other.
    """

    def __init__(
        self,
        rows: Examples,
        picture_format: PictureFormat,
        augment: Sequence[str],
        *,
        decode: Decode = opened,
    ) -> None:
        super().__init__(rows, alike=True)
        self._pictures = Pictures(rows, picture_format, augment, decode=decode)

    def __getitem__(self, place: int) -> dict[str, Any]:
        views = [self._pictures[place][INPUT] for _ in range(VIEWS)]
        number = self.rows.rows[place]
        return {INPUT: torch.stack(views), "labels": [VIEWS * number + view for view in range(VIEWS)]}


@dataclass(frozen=True)
class PairData:
    """Pairs to train on, drawn anew in each epoch, and to validate on, drawn once."""

    train: PicturePairs
    validation: DrawnView | None
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


def load_picture_pairs(
    settings: PictureSettings, picture_format: PictureFormat, *, folder: Path | None = None
) -> PairData:
    """Read and split; classes are not read, also where folders are named by them.

    Raises:
        DataError: a source cannot be used, pictures are faulty and the policy is 'fail', or too little is left.
        SettingError: nothing is drawn, so that both views would be the same.
    """
    if not settings.augment:
        raise SettingError(
            "data.augment",
            "is empty, and two views of a picture would be the same",
            "Give changes that leave what a picture shows, such as [crop, flip, color].",
        )
    files = files_of(settings, None, folder)
    for setting, rows in (("data.train", files.train), ("data.validation", files.validation)):
        if len(rows) < FEWEST and (setting == "data.train" or settings.validation is not None):
            raise DataError(
                setting,
                f"leaves {counted(len(rows), 'picture')}, and the others are what a picture is told from",
                "Give more pictures.",
            )
    held_out = PicturePairs(files.validation, picture_format, settings.augment, decode=settings.decode)
    return PairData(
        train=PicturePairs(files.train, picture_format, settings.augment, decode=settings.decode),
        validation=DrawnView(held_out, settings.seed) if len(held_out) else None,
        report=files.report,
        fingerprints=files.fingerprints,
        example_rows=files.example_rows,
    )


def collate_pairs(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: `pixel_values`, shape (rows, 2, channels, height, width), and `labels`, shape (rows, 2)."""
    return {
        INPUT: torch.stack([example[INPUT] for example in examples]),
        "labels": torch.tensor([example["labels"] for example in examples]),
    }
