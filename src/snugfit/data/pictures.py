"""Classes of pictures: rows with a path and a label to examples for a model, decoded when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snugfit.core.random import derive_seed, preserved_randomness, seed_device
from snugfit.data.bad_rows import check_policy, settle
from snugfit.data.class_names import check_classes, label_warnings, sort_labels
from snugfit.data.examples import FILE, Examples, FromRows
from snugfit.data.file_rows import FileRows
from snugfit.data.picture_files import read_pictures
from snugfit.data.picture_format import PictureFormat
from snugfit.data.picture_kinds import check_augmentations
from snugfit.data.pixels import opened, pixels
from snugfit.data.report import DataReport
from snugfit.data.sources import RowSource
from snugfit.data.split import check_fraction, split_rows
from snugfit.data.usable_rows import Part
from snugfit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

INPUT = "pixel_values"
_CPU = torch.device("cpu")

_EXAMPLE_ROWS = 32


@dataclass(frozen=True)
class PictureSettings:
    """The `data` part of a recipe for classes of pictures; a fraction to validate on is stratified by label."""

    train: RowSource
    validation: float | RowSource | None = 0.1
    image: str = "image"
    label: str = "label"
    augment: tuple[str, ...] = ("crop", "flip")
    bad_rows: str = "fail"
    seed: int = 0

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        check_augmentations(self.augment)
        if isinstance(self.validation, (int, float)):
            check_fraction(self.validation)


class Pictures(FromRows):
    """Pictures on disk as examples: `pixel_values`, float32 of shape (channels, height, width), and `labels` where they have one.

    Args:
        rows: each with the path of its file, and the number of its class.
        picture_format: of the examples.
        augment: names of what is done to each picture that is trained on, drawn from the global generators.
    """

    def __init__(self, rows: Examples, picture_format: PictureFormat, augment: Sequence[str] = ()) -> None:
        super().__init__(rows, alike=True)
        self.format, self.augment = picture_format, tuple(augment)

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        label = {"labels": row["labels"]} if "labels" in row else {}
        return {INPUT: pixels(opened(row[FILE], self.format.channels), self.format, self.augment), **label}


class PictureView(FromRows):
    """Pictures drawn as those to train on are, always the same by a number and their places."""

    def __init__(self, pictures: Pictures, augment: Sequence[str], number: int) -> None:
        super().__init__(pictures.rows, alike=True)
        self._pictures, self._number = Pictures(pictures.rows, pictures.format, augment), number

    def __getitem__(self, place: int) -> dict[str, Any]:
        with preserved_randomness(_CPU):
            seed_device(derive_seed(self._number, "view", place), _CPU)
            return self._pictures[place]


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
    settings: PictureSettings, picture_format: PictureFormat, *, folder: Path | None = None
) -> PictureData:
    """Read, validate and split.

    Raises:
        DataError: a source cannot be used, pictures are faulty and the policy is 'fail', or too little is left.
    """
    columns: dict[str, Any] = {"image": settings.image, "label": settings.label, "folder": folder}
    train, digests = read_pictures(settings.train, "data.train", **columns)
    names = sort_labels(set(train.labels))
    faults = list(train.faults)
    held_out: Part | None = None
    others: list[str] = []
    if settings.validation is not None and not isinstance(settings.validation, (int, float)):
        held_out, others = read_pictures(settings.validation, "data.validation", **columns, known=names)
        faults += held_out.faults
    skipped = settle(faults, settings.bad_rows)
    check_classes(names, train.table.source, settings.label)
    rows, part = _examples(train, names), train
    fingerprints = train.table.fingerprints
    validation = rows.at(())
    shown: Sequence[int] = range(len(rows))
    if held_out is not None:
        validation, part = _examples(held_out, names), held_out
        fingerprints[held_out.table.source] = held_out.table.sha256
        shown = range(len(validation))
        if not validation:
            raise DataError(
                "data",
                f"no usable picture is left in {part.table.source}",
                "Correct them, or name another source.",
            )
    elif isinstance(settings.validation, (int, float)):
        places, shown = split_rows([row["labels"] for row in rows], settings.validation, settings.seed)
        digests, others = [digests[place] for place in places], [digests[place] for place in shown]
        rows, validation = rows.at(places), rows.at(shown)
    return PictureData(
        train=Pictures(rows, picture_format, settings.augment),
        validation=Pictures(validation, picture_format) if validation else None,
        labels=names,
        report=_report(
            rows,
            validation,
            names,
            skipped,
            (*label_warnings(names, len(rows), settings.label), *_overlap(digests, others)),
        ),
        fingerprints=fingerprints,
        example_rows=[{settings.image: part.texts[place]} for place in shown[:_EXAMPLE_ROWS]],
    )


def load_picture_rows(
    source: RowSource,
    picture_format: PictureFormat,
    *,
    image: str,
    label: str | None,
    labels: Sequence[str],
    bad_rows: str,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label` and the model's `labels`) or to predict (without), in its order.

    Raises:
        DataError: as for `load_pictures`; a label that the model does not know is a fault of its row.
    """
    check_policy(bad_rows)
    known = labels if label is not None else None
    part, _ = read_pictures(source, "data", image=image, label=label, known=known, folder=folder)
    skipped = settle(part.faults, bad_rows)
    if not part.row_indices:
        raise DataError(
            "data",
            f"no usable picture is left in {part.table.source}",
            "Correct them, or name another source.",
        )
    rows = _examples(part, labels if label is not None else ())
    return FileRows(
        examples=Pictures(rows, picture_format),
        rows=[part.table.rows[row] for row in part.row_indices],
        lines=[part.table.lines[row] for row in part.row_indices],
        columns=part.table.columns,
        collate=collate,
        report=_report(rows.at(()), rows, labels, skipped, ()),
        fingerprints=part.table.fingerprints,
    )


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: `pixel_values`, shape (rows, channels, height, width), and `labels`, shape (rows,), where there are any."""
    batch = {INPUT: torch.stack([example[INPUT] for example in examples])}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch


def _examples(part: Part, names: Sequence[str]) -> Examples:
    number = {name: place for place, name in enumerate(names)}
    labels = [{"labels": number[label]} for label in part.labels] if names else [{}] * len(part.labels)
    rows = [{FILE: path, **label} for path, label in zip(part.texts, labels, strict=True)]
    made = Examples.of(rows, part.table, part.row_indices)
    made.unit = FILE
    return made


def _report(
    train: Examples,
    validation: Examples,
    names: Sequence[str],
    skipped: Mapping[str, int],
    warned: Sequence[str],
) -> DataReport:
    counts = Counter(row.get("labels") for row in train or validation)
    return DataReport(
        train=len(train),
        validation=len(validation),
        skipped=dict(skipped),
        labels={name: counts[place] for place, name in enumerate(names)},
        warnings=tuple(warned),
        unit="pictures",
    )


def _overlap(train: Sequence[str], validation: Sequence[str]) -> list[str]:
    known = set(train)
    shared = sum(digest in known for digest in validation)
    if not shared:
        return []
    return [
        f"{shared:,} of {len(validation):,} validation pictures are among those trained on: their scores say nothing new."
    ]
