"""Pictures with masks: two folders of files of one name, or rows with two paths, to examples for a model of each pixel's class."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snugfit.core.losses import IGNORE_INDEX
from snugfit.data.bad_rows import BadRow, Fault, check_policy, settle
from snugfit.data.examples import FILE, Examples, FromRows
from snugfit.data.files.file_kinds import check_augmentations
from snugfit.data.files.file_rows import FileRows
from snugfit.data.files.labelled_files import inputs_of_files
from snugfit.data.files.path_rows import base_of
from snugfit.data.pictures.labelled_pictures import Decode
from snugfit.data.pictures.mask_files import INSTANCES, DecodeMask, look_at_mask, opened_mask
from snugfit.data.pictures.mask_folders import mask_folders, paired
from snugfit.data.pictures.picture_files import PICTURE_FILES, read_pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import opened, pixels, pixels_with_mask
from snugfit.data.pictures.torchvision_transforms import UNKNOWN, check_transforms
from snugfit.data.report import DataReport
from snugfit.data.sources import RowSource, fingerprints_of
from snugfit.data.splits.hold_out import SHARES
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.splits.sides import Validation, check_validation, make_sides
from snugfit.data.usable_rows import Part
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import is_python_path

if TYPE_CHECKING:
    from torch import Tensor

INPUT, MASK = "pixel_values", "mask"
_OF_BOXES = ("bbox", "bboxes", "box", "boxes", "instances", "polygons", "segmentation")


@dataclass(frozen=True)
class MaskSource:
    """The `data` part of a recipe for masks.

    Args:
        classes: names of the classes, by their numbers in masks; None to count them.
        decode, decode_mask: decode pictures and masks, as `opened` and `opened_mask` do or from a cache.
    """

    train: RowSource
    validation: Validation = 0.1
    image: str = "image"
    label: str = "label"
    classes: tuple[str, ...] | None = None
    augment: tuple[str, ...] = ("crop", "flip")
    bad_rows: str = "fail"
    seed: int = 0
    leaks: LeakSettings = field(default_factory=LeakSettings)
    decode: Decode = opened
    decode_mask: DecodeMask = opened_mask

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        check_augmentations(self.augment)
        if self.classes is not None and len(self.classes) < 2:
            raise SettingError("data.classes", "needs two classes or more", "Name those of the masks.")
        twice = [name for name in self.classes or () if (self.classes or ()).count(name) > 1]
        if twice:
            raise SettingError(
                "data.classes", f"names two classes '{twice[0]}'", "Give each number a name of its own."
            )
        check_validation(self.validation)


class PicturesWithMasks(FromRows):
    """Pictures on disk as examples: `pixel_values`, float32 of shape (channels, height, width), and `labels`, int64 of shape (height, width).

    A pixel of a mask of 255 has label -100. Without masks an example has `sides`, the width and height of the picture itself.
    """

    def __init__(
        self,
        rows: Examples,
        picture_format: PictureFormat,
        augment: Sequence[str] = (),
        *,
        decode: Decode = opened,
        decode_mask: DecodeMask = opened_mask,
    ) -> None:
        super().__init__(rows, alike=True)
        self._decode, self._decode_mask = decode, decode_mask
        self.format, self.augment = picture_format, tuple(augment)
        size = picture_format.width, picture_format.height
        check_transforms(self.augment, size, picture_format.channels, masks=True)

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        picture = self._decode(row[FILE], self.format.channels)
        if MASK not in row:
            return {INPUT: pixels(picture, self.format, self.augment), "sides": picture.size}
        values, mask = pixels_with_mask(picture, self._decode_mask(row[MASK]), self.format, self.augment)
        labels = mask.long()
        return {INPUT: values, "labels": labels.masked_fill(labels == UNKNOWN, IGNORE_INDEX)}


@dataclass(frozen=True)
class MaskData:
    """Examples to train and validate on, and the names of the classes."""

    train: PicturesWithMasks
    validation: PicturesWithMasks | None
    classes: tuple[str, ...]
    report: DataReport
    fingerprints: Mapping[str, str]

    @property
    def shown(self) -> PicturesWithMasks:
        """Pictures that are not trained on, or all where there are none."""
        return self.validation or self.train


@dataclass
class MaskPart:
    """Pictures that can be read, with their masks; `highest` is the largest number in each mask."""

    part: Part
    masks: list[str]
    digests: list[str]
    highest: list[int]

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of as many classes as there are, two at least, where nobody named them."""
        return tuple(map(str, range(max([1, *self.highest]) + 1)))


def load_masks(
    settings: MaskSource, picture_format: PictureFormat, *, folder: Path | None = None
) -> MaskData:
    """Read, check and split.

    Raises:
        DataError: a source cannot be used, pictures or masks are faulty and the policy is 'fail', or too little is left.
    """
    columns: dict[str, Any] = {
        "image": settings.image,
        "label": settings.label,
        "folder": folder,
        "decode_mask": settings.decode_mask,
    }
    most = None if settings.classes is None else len(settings.classes)
    train = read_masks(settings.train, "data.train", **columns, classes=most)
    classes = settings.classes or train.numbers
    faults = list(train.part.faults)
    held_out = None
    if settings.validation is not None and not isinstance(settings.validation, SHARES):
        held_out = read_masks(
            settings.validation, "data.validation", **columns, classes=len(classes), learned=True
        )
        faults += held_out.part.faults
    skipped = settle(faults, settings.bad_rows)
    parts = [train] if held_out is None else [train, held_out]
    for each in parts:
        if not each.masks:
            raise _nothing_left(each.part)
    made = make_sides(
        list(map(_examples, parts)),
        settings.validation,
        settings.seed,
        inputs=inputs_of_files(
            PICTURE_FILES, [each.digests for each in parts], [each.part.texts for each in parts]
        ),
        leaks=settings.leaks,
    )
    rows, validation = made.train, made.validation
    decode: dict[str, Any] = {"decode": settings.decode, "decode_mask": settings.decode_mask}
    return MaskData(
        train=PicturesWithMasks(rows, picture_format, settings.augment, **decode),
        validation=PicturesWithMasks(validation, picture_format, **decode) if validation else None,
        classes=classes,
        report=replace(
            _report(len(rows), len(validation), skipped),
            warnings=(*made.warnings, *([] if settings.classes else _stray_numbers(train))),
        ),
        fingerprints=fingerprints_of(each.part.table for each in parts),
    )


def _stray_numbers(train: MaskPart) -> list[str]:
    """Return a warning where a mask's largest number is more than twice that of any other one: a stray pixel makes that many classes."""
    highest = max(train.highest)
    others = max((each for each in train.highest if each != highest), default=highest)
    if highest <= 2 * others + 1:
        return []
    masks = [mask for mask, each in zip(train.masks, train.highest, strict=True) if each == highest]
    more = f" and {len(masks) - 1} more" if len(masks) > 1 else ""
    return [
        f"the masks are of {highest + 1} classes, by the number {highest} in {masks[0]}{more}, and the others go to {others}: "
        f"where that is a fault, name the classes in data.classes, of which a mask with larger numbers is left out, or write {UNKNOWN}."
    ]


def load_mask_rows(
    source: RowSource,
    picture_format: PictureFormat,
    *,
    image: str,
    label: str | None,
    classes: int,
    bad_rows: str,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label`) or to predict (without), in its order.

    Raises:
        DataError: as for `load_masks`.
    """
    check_policy(bad_rows)
    if label is None:
        part = _pictures(source, "data", image, folder)
        loaded = MaskPart(part, [], [], [])
    else:
        loaded = read_masks(
            source, "data", image=image, label=label, folder=folder, classes=classes, learned=True
        )
        part = loaded.part
    skipped = settle(part.faults, bad_rows)
    if not part.row_indices:
        raise _nothing_left(part)
    return FileRows(
        examples=PicturesWithMasks(_examples(loaded), picture_format),
        rows=[part.table.rows[row] for row in part.row_indices],
        lines=[part.table.lines[row] for row in part.row_indices],
        columns=part.table.columns,
        collate=collate,
        report=_report(0, len(part.row_indices), skipped),
        fingerprints=part.table.fingerprints,
    )


def read_masks(
    source: RowSource,
    setting: str,
    *,
    image: str,
    label: str,
    folder: Path | None,
    classes: int | None,
    learned: bool = False,
    decode_mask: DecodeMask = opened_mask,
) -> MaskPart:
    """Return the pictures of a source that have a mask of their size, and the faults of the others.

    Args:
        source: a folder with a folder of pictures and one of masks, or rows with two columns of paths, relative to the file they stand in.
        classes: how many there may be; None for any number below 255.
        learned: whether the masks that are trained on have said so: then no 255 is taken for the second class.
    Raises:
        DataError: the source cannot be used as a whole.
    """
    if (folders := _folders(source, folder)) is not None:
        names, missing = paired(*folders)
        part, digests = read_pictures(str(folders[0]), setting, image=image, label=None, folder=folder)
        faults = list(part.faults)
        masks = {str(path): str(mask) for path, mask in names.items()}
        faults += [
            Fault(str(path), 0, "missing mask", f"has no mask of its name in {folders[1]}")
            for path in missing
        ]
        given = [masks.get(os.path.abspath(path)) for path in part.texts]
    else:
        part, digests = read_pictures(source, setting, image=image, label=None, folder=folder)
        boxes = [name for name in part.table.columns if name.casefold() in _OF_BOXES]
        if label not in part.table.columns:
            raise DataError(
                "data.label",
                f"{part.table.source} has no column '{label}' of paths of masks{f', and {boxes[0]!r} holds boxes' if boxes else ''}",
                INSTANCES if boxes else "Name it: data.label=COLUMN.",
            )
        faults, given = list(part.faults), []
        base = base_of(part.table, source, folder)
        for row in part.row_indices:
            cell = part.table.rows[row].get(label)
            given.append(os.path.join(base, cell) if isinstance(cell, str) and cell.strip() else None)
            if given[-1] is None:
                kind = f"holds {type(cell).__name__}" if isinstance(cell, (list, dict)) else "is empty"
                faults.append(part.table.fault(row, BadRow("missing mask", f"{label} {kind}. {INSTANCES}")))

    def fault(place: int, bad: BadRow) -> Fault:
        if folders is not None:
            return bad.at(str(given[place]), 0)
        return part.table.fault(part.row_indices[place], BadRow(bad.reason, f"{given[place]} {bad.detail}"))

    looked: dict[int, tuple[int, bool]] = {}
    for place, (path, mask) in enumerate(zip(part.texts, given, strict=True)):
        if mask is None:
            continue
        try:
            looked[place] = look_at_mask(path, mask, classes, decode_mask)
        except BadRow as bad:
            faults.append(fault(place, bad))
    if not learned and not any(highest for highest, _ in looked.values()):
        unclear = BadRow(
            "unusable mask",
            f"has 0 and {UNKNOWN} alone, as others do, and {UNKNOWN} is not scored: write 1 for the second class",
        )
        faults += [fault(place, unclear) for place, (_, partly) in looked.items() if partly]
        looked = {place: each for place, each in looked.items() if not each[1]}
    good = list(looked)
    loaded = MaskPart(
        part,
        [str(given[place]) for place in good],
        [digests[place] for place in good],
        [highest for highest, _ in looked.values()],
    )
    loaded.part = replace(
        part,
        row_indices=[part.row_indices[place] for place in good],
        texts=[part.texts[place] for place in good],
        labels=[part.labels[place] for place in good],
        faults=sorted(faults, key=lambda fault: fault.line),
    )
    return loaded


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: `pixel_values`, and `labels`, shape (rows, height, width), where there are any."""
    names = [name for name in (INPUT, "labels") if name in examples[0]]
    return {name: torch.stack([example[name] for example in examples]) for name in names}


def _pictures(source: RowSource, setting: str, image: str, folder: Path | None) -> Part:
    folders = _folders(source, folder)
    where = source if folders is None else str(folders[0])
    return read_pictures(where, setting, image=image, label=None, folder=folder)[0]


def _folders(source: RowSource, folder: Path | None) -> tuple[Path, Path] | None:
    if not isinstance(source, (str, Path)) or is_python_path(str(source)):
        return None
    path = (folder or Path.cwd()) / Path(source).expanduser()
    return mask_folders(path) if path.is_dir() else None


def _examples(loaded: MaskPart) -> Examples:
    part = loaded.part
    masks: Sequence[str | None] = loaded.masks or [None] * len(part.texts)
    rows = [
        {FILE: path, **({} if mask is None else {MASK: mask})}
        for path, mask in zip(part.texts, masks, strict=True)
    ]
    made = Examples.of(rows, part.table, part.row_indices)
    made.unit = FILE
    return made


def _report(train: int, validation: int, skipped: Mapping[str, int]) -> DataReport:
    return DataReport(train=train, validation=validation, skipped=dict(skipped), unit="pictures")


def _nothing_left(part: Part) -> DataError:
    return DataError(
        "data",
        f"no picture with a usable mask is left in {part.table.source}",
        "Correct them, or name another source.",
    )
