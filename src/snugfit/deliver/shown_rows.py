"""Labelled rows as people read them, by their places among those that were scored: where they stand, their columns, and what they show."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from snugfit.data.examples import FILE, Examples, origin_of, place_in_whole, whole_examples
from snugfit.data.sources import read_table
from snugfit.errors import SnugfitError
from snugfit.system.user_objects import is_python_path

if TYPE_CHECKING:
    from PIL import Image

    from snugfit.data.files.file_rows import FileRows

SIDE = 160
"""Of a picture on a page, in pixels."""
_LONGEST_CELL, _MOST_CELLS = 400, 16
_MOST_BYTES = 64 << 20
"""Of a file that is read again for its worst rows."""


class ShownRows(Protocol):
    """Rows as people read them."""

    def place(self, place: int) -> str:
        """Return where a row stands."""
        ...

    def cells(self, place: int) -> dict[str, str]:
        """Return the columns of a row."""
        ...

    def pictures(self, place: int, masks: Sequence[Any]) -> tuple[str, ...]:
        """Return a row's picture as the address of an image in a page, and with each of these masks over it; none where it has none."""
        ...


class FileShown:
    """The rows of a file that was read to be scored."""

    def __init__(self, rows: FileRows, *, of_pictures: bool) -> None:
        self._rows, self._of_pictures = rows, of_pictures

    def place(self, place: int) -> str:
        """Return the line of a row."""
        return f"line {self._rows.lines[place]:,}" if place < len(self._rows.lines) else f"row {place:,}"

    def cells(self, place: int) -> dict[str, str]:
        """Return the columns of a row; none of a text that is read in blocks."""
        return _cells(self._rows.rows[place]) if place < len(self._rows.rows) else {}

    def pictures(self, place: int, masks: Sequence[Any]) -> tuple[str, ...]:
        """Return a row's picture, alone and under each mask."""
        return _pictures(self._rows.examples, place, masks) if self._of_pictures else ()


class ValidationShown:
    """The rows that a run is validated on, without their columns, which a run does not keep: `columns_again` reads them."""

    def __init__(self, data: Any, *, of_pictures: bool) -> None:
        self._data, self._of_pictures = data, of_pictures

    def place(self, place: int) -> str:
        """Return the file and the line of a row, as seen from the current folder."""
        return origin_of(self._data, place, "validation").removeprefix(f"{os.getcwd()}{os.sep}")

    def cells(self, place: int) -> dict[str, str]:  # noqa: ARG002 (as other rows)
        """Return nothing."""
        return {}

    def pictures(self, place: int, masks: Sequence[Any]) -> tuple[str, ...]:
        """Return a row's picture, alone and under each mask."""
        return _pictures(self._data, place, masks) if self._of_pictures else ()


def columns_again(data: Any, places: Sequence[int], tokenizer: Any = None) -> list[dict[str, str]]:
    """Return the columns of rows at these places, read again from the one file that they are of; where that is no longer so, the text that the model reads.

    Args:
        data: examples for a model.
        tokenizer: makes texts of tokens; None where rows have none.
    """
    examples = whole_examples(data)
    table = _table_of(examples)
    if table is not None and examples is not None:
        rows = [examples.rows[place] for place in places]
        return [_cells(table[row]) if row < len(table) else {} for row in rows]
    return [{} if tokenizer is None else _text_of(data[place], tokenizer) for place in places]


def _text_of(example: Any, tokenizer: Any) -> dict[str, str]:
    ids = example.get("input_ids") if isinstance(example, Mapping) else None
    if ids is None or (len(ids) and not isinstance(ids[0], int)):
        return {}
    return {"text": str(tokenizer.decode(list(ids), skip_special_tokens=True))[:_LONGEST_CELL]}


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    cells = {name: str(value)[:_LONGEST_CELL] for name, value in list(row.items())[:_MOST_CELLS]}
    return cells if len(row) <= _MOST_CELLS else {**cells, "…": f"and {len(row) - _MOST_CELLS} more columns"}


def _table_of(examples: Examples | None) -> Sequence[Mapping[str, Any]] | None:
    """Return the rows of the one file that examples are of; None of a large one, and where it is no longer there."""
    if (
        examples is None
        or examples.sources is not None
        or is_python_path(examples.source)
        or examples.unit != "row"
    ):
        return None
    path = Path(examples.source)
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return read_table(str(path), setting="data.validation").rows
    except (OSError, SnugfitError):
        return None


def file_of_row(data: Any, place: int) -> str | None:
    """Return the file that an example is; None where it is none."""
    examples, place = place_in_whole(data, place)
    return examples[place][FILE] if isinstance(examples, Examples) and examples.unit == FILE else None


def _pictures(data: Any, place: int, masks: Sequence[Any]) -> tuple[str, ...]:
    """Return a picture, small, and the same under each mask.

    Args:
        masks: numbers of classes, shape (height, width); negative where nothing is known.
    """
    from PIL import Image

    from snugfit.data.pictures.pixels import opened

    file = file_of_row(data, place)
    if file is None:
        return ()
    try:
        picture = opened(file)
    except (OSError, SyntaxError):
        return ()
    if not masks:
        picture.thumbnail((SIDE, SIDE))
        return (_address(picture),)
    picture = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return (_address(picture), *(_address(_under(picture, mask)) for mask in masks))


def _under(picture: Image.Image, mask: Any) -> Image.Image:
    """Return a picture in the colours of its classes: the first has none, and what is not known is gray."""
    import numpy as np
    from PIL import Image

    numbers = np.asarray(mask)
    hues = (np.clip(numbers, 0, None) * 97 + 151) % 256  # neighbours far apart on the wheel of colours
    full = np.where(numbers > 0, 220, 0)
    colours = np.stack([hues, full, np.full_like(hues, 200)], axis=-1).astype(np.uint8)
    painted = Image.fromarray(colours, "HSV").convert("RGB").resize(picture.size, Image.Resampling.NEAREST)
    strength = np.where(numbers == 0, 0, 140).astype(np.uint8)
    return Image.composite(
        painted,
        picture.convert("RGB"),
        Image.fromarray(strength).resize(picture.size, Image.Resampling.NEAREST),
    )


def _address(picture: Image.Image) -> str:
    written = io.BytesIO()
    picture.convert("RGB").save(written, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
