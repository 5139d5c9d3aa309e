"""Classes of labelled rows as a model tells them, and the rows that it is most wrong about, with their pictures."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from snugfit.data.examples import FILE, FromRows
from snugfit.results.class_details import ClassDetails, ProbabilityBin, WrongRow

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.files.file_rows import FileRows

_BINS = 15
_WORST = 48
_SIDE = 160
"""Of a picture on a page, in pixels."""
_LONGEST_CELL = 400


def class_details(
    probabilities: Tensor, rows: FileRows, classes: tuple[str, ...], *, pictures: bool
) -> ClassDetails:
    """Return in detail how probabilities, shape (rows, classes), agree with the labels of the rows.

    Args:
        pictures: whether the rows are files of pictures, to be shown.
    """
    labels = _labels(rows)
    highest, predicted = probabilities.max(dim=1)
    given = probabilities.gather(1, labels[:, None])[:, 0]
    wrong = []
    for place in given.nan_to_num(nan=-1.0).sort(stable=True).indices[:_WORST].tolist():
        cells = {name: str(value)[:_LONGEST_CELL] for name, value in rows.rows[place].items()}
        label, prediction = classes[int(labels[place])], classes[int(predicted[place])]
        picture = _shown(rows, place) if pictures else ""
        sure = float(given[place]), float(highest[place])
        wrong.append(WrongRow(rows.lines[place], label, sure[0], prediction, sure[1], cells, picture))
    return ClassDetails(
        classes,
        Counter(zip(labels.tolist(), predicted.tolist(), strict=True)),
        _bins(highest, predicted == labels),
        wrong,
    )


def _labels(rows: FileRows) -> Tensor:
    """Return the numbers of the classes of rows; files are not decoded for them."""
    held: Any = rows.examples
    if isinstance(held, FromRows) and held.rows.unit == FILE:
        held = held.rows
    return torch.tensor([int(held[place]["labels"]) for place in range(len(rows.rows))])


def _bins(highest: Tensor, right: Tensor) -> list[ProbabilityBin]:
    numbers = (highest.nan_to_num(nan=-1.0) * _BINS).long().clamp(max=_BINS - 1)
    bins = []
    for number in numbers[~highest.isnan()].unique().tolist():
        own = numbers == number
        bins.append(
            ProbabilityBin(int(own.sum()), float(highest[own].mean()), float(right[own].float().mean()))
        )
    return bins


def _shown(rows: FileRows, place: int) -> str:
    """Return a picture small, as the address of an image in a page."""
    from snugfit.data.pictures.pixels import opened

    files: Any = rows.examples
    row: Mapping[str, Any] = files.rows[place]
    picture = opened(row[FILE])
    picture.thumbnail((_SIDE, _SIDE))
    written = io.BytesIO()
    picture.save(written, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
