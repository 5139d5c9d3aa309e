"""Classes of pictures: rows with a path and a label to examples for a model, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import check_policy
from snugfit.data.examples import FILE, Examples, FromRows
from snugfit.data.files.file_kinds import check_augmentations
from snugfit.data.files.labelled_files import LabelledFiles, load_files
from snugfit.data.labels.label_sets import LabelSets
from snugfit.data.pictures.picture_files import PICTURE_FILES
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import opened, pixels
from snugfit.data.pictures.torchvision_transforms import check_transforms
from snugfit.data.report import DataReport
from snugfit.data.sources import RowSource
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.splits.sides import Validation, check_validation

INPUT = "pixel_values"
Change = Callable[[Any], Any]
"""From a picture of Pillow to another of the same mode and size."""
Decode = Callable[[str, int], Any]
"""From a path, and 1 for gray or 3 for colour, to a decoded picture of Pillow."""


@dataclass(frozen=True)
class PictureSettings:
    """The `data` part of a recipe for pictures, with a class each, any number of labels, or none; a fraction to validate on is stratified by label.

    Args:
        decode: decodes pictures, as `opened` does or from a cache.
    """

    train: RowSource
    validation: Validation = 0.1
    image: str = "image"
    label: str | LabelSets | None = "label"
    augment: tuple[str, ...] = ("crop", "flip")
    bad_rows: str = "fail"
    seed: int = 0
    leaks: LeakSettings = field(default_factory=LeakSettings)
    decode: Decode = opened

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        check_augmentations(self.augment)
        check_validation(self.validation)


class Pictures(FromRows):
    """Pictures on disk as examples: `pixel_values`, float32 of shape (channels, height, width), and `labels` where they have one.

    Args:
        rows: each with the path of its file, and the number of its class.
        picture_format: of the examples.
        augment: names of what is done to each picture that is trained on, drawn from the global generators.
        change: of each picture that is trained on, behind that; see `pixels`.
        decode: decodes them.
    """

    def __init__(
        self,
        rows: Examples,
        picture_format: PictureFormat,
        augment: Sequence[str] = (),
        change: Change | None = None,
        *,
        decode: Decode = opened,
    ) -> None:
        super().__init__(rows, alike=True)
        self._decode = decode
        self.format, self.augment, self.change = picture_format, tuple(augment), change
        size = picture_format.width, picture_format.height
        check_transforms(self.augment, size, picture_format.channels, masks=False)

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        label = {"labels": row["labels"]} if "labels" in row else {}
        picture = self._decode(row[FILE], self.format.channels)
        return {INPUT: pixels(picture, self.format, self.augment, self.change), **label}


class Mirrored(FromRows):
    """Pictures as examples, each with left and right changed.

    Args:
        pictures: the examples as they are.
    """

    def __init__(self, pictures: Pictures) -> None:
        super().__init__(pictures.rows, alike=True)
        self._pictures = pictures

    def __getitem__(self, place: int) -> dict[str, Any]:
        example = self._pictures[place]
        return {**example, INPUT: example[INPUT].flip(-1)}


@dataclass(frozen=True)
class PictureData:
    """Examples to train and validate on; label i of an example is the name `labels[i]`."""

    train: Pictures
    validation: Pictures | None
    labels: tuple[str, ...]
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


def load_pictures(
    settings: PictureSettings,
    picture_format: PictureFormat,
    *,
    folder: Path | None = None,
    change: Change | None = None,
) -> PictureData:
    """Read, validate and split.

    Args:
        change: of each picture that is trained on, behind what `settings.augment` names.
    Raises:
        DataError: a source cannot be used, pictures are faulty and the policy is 'fail', or too little is left.
    """
    files = files_of(settings, settings.label, folder)
    return PictureData(
        train=Pictures(files.train, picture_format, settings.augment, change, decode=settings.decode),
        validation=Pictures(files.validation, picture_format, decode=settings.decode)
        if files.validation
        else None,
        labels=files.labels,
        report=files.report,
        fingerprints=files.fingerprints,
        example_rows=files.example_rows,
    )


def files_of(settings: PictureSettings, label: str | LabelSets | None, folder: Path | None) -> LabelledFiles:
    """Return the pictures to train and to validate on that can be used.

    Args:
        label: the place of their labels; None where none are read.
    Raises:
        DataError: as for `load_pictures`.
    """
    return load_files(
        PICTURE_FILES,
        train=settings.train,
        validation=settings.validation,
        column=settings.image,
        label=label,
        bad_rows=settings.bad_rows,
        seed=settings.seed,
        leaks=settings.leaks,
        folder=folder,
    )
