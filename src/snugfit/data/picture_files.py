"""Pictures on disk: a folder of them, with a folder for each class, or a table with a column of paths."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow, Fault
from snugfit.data.picture_kinds import SUFFIXES, pictures_in
from snugfit.data.sources import RowSource, Table, read_table
from snugfit.data.usable_rows import Part, part_of_table
from snugfit.errors import DataError
from snugfit.system.user_objects import is_python_path

if TYPE_CHECKING:
    from PIL import Image

_ENDS_BYTES = 4096
_END = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
"""Bytes that a whole picture ends with: what was not copied to its end has a header as good as any."""


def read_pictures(
    source: RowSource,
    setting: str,
    *,
    image: str,
    label: str | None,
    known: Sequence[str] | None = None,
    folder: Path | None = None,
) -> tuple[Part, list[str]]:
    """Return the pictures of a source that can be read, the faults of the others, and a digest of each picture.

    A picture's beginning and its end are read, not all of it: damage in the middle is met when it is decoded.

    Args:
        source: a folder of pictures, in folders named by their classes where labels are asked for; or rows with a column of paths,
            which are relative to the file that they stand in.
        image, label: columns; of a folder the names that its rows get. No label is read where it is None.
        known: labels that there may be.
    Returns:
        The texts of the part are paths.
    Raises:
        DataError: the source cannot be used as a whole.
    """
    table, base = _table(source, setting, image, label, folder)
    part = part_of_table(table, (image,), label, known, "data.image")
    good: list[int] = []
    faults, written, paths, digests = list(part.faults), [], [], []
    for place, (row, text) in enumerate(zip(part.row_indices, part.texts, strict=True)):
        path = os.path.join(base, os.path.expanduser(text))
        try:
            digest = _looked_at(path)
        except BadRow as bad:
            if table.rows[row].get(_OF_FOLDER):
                faults.append(bad.at(path, 0))
            else:
                faults.append(Fault(table.source, table.lines[row], bad.reason, f"{path} {bad.detail}"))
            continue
        good.append(place)
        written.append(text)
        paths.append(path)
        digests.append(digest)
    part = replace(
        part,
        row_indices=[part.row_indices[place] for place in good],
        texts=paths,
        labels=[part.labels[place] for place in good],
        faults=sorted(faults, key=lambda fault: fault.line),
    )
    seen = "\n".join(
        [table.sha256, *(f"{text} {digest}" for text, digest in zip(written, digests, strict=True))]
    )
    sha256 = hashlib.sha256(seen.encode("utf-8")).hexdigest()
    part = replace(part, table=replace(table, sha256=sha256))
    return part, digests


_OF_FOLDER = "snugfit.of_folder"
"""A column of rows that a folder was read as."""


def _table(
    source: RowSource, setting: str, image: str, label: str | None, folder: Path | None
) -> tuple[Table, str]:
    """Return the rows of a source, and the folder that its paths are relative to."""
    here = str(folder or Path.cwd())
    if callable(source) or (isinstance(source, str) and is_python_path(source)):
        return read_table(source, setting=setting, folder=folder), here
    path = os.path.join(here, os.path.expanduser(str(source)))
    if not os.path.isdir(path):
        return read_table(source, setting=setting, folder=folder), os.path.dirname(path)
    files = pictures_in(Path(path))
    if not files:
        raise DataError(
            setting, f"{source} holds no picture ({', '.join(sorted(SUFFIXES))})", "Name another folder."
        )
    rows: list[dict[str, Any]] = [{image: os.path.relpath(file, path), _OF_FOLDER: True} for file in files]
    if label is not None:
        classes = [file.relative_to(path).parts[0] if file.parent != Path(path) else None for file in files]
        loose = [file.name for file, name in zip(files, classes, strict=True) if name is None]
        if loose:
            raise DataError(
                setting,
                f"{source} holds pictures that lie in no folder of a class, such as {loose[0]} ({len(loose):,} of {len(files):,})",
                "Put each into a folder named by its class, or give a table with columns of paths and labels.",
            )
        rows = [{**row, label: name} for row, name in zip(rows, classes, strict=True)]
    columns = (image,) if label is None else (image, label)
    return Table(str(source), columns, rows, list(range(1, len(rows) + 1)), ""), path


def _looked_at(path: str) -> str:
    """Return a digest of a picture's size in bytes, its beginning and its end, once its header can be read.

    Raises:
        BadRow: there is no picture that can be read.
    """
    from PIL import Image

    try:
        with open(path, "rb") as file:
            start = file.read(_ENDS_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _ENDS_BYTES))
            end = file.read()
            if not size:
                raise BadRow("empty picture", "is empty")
            file.seek(0)
            with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
                picture = Image.open(file)
            if (
                _END.get(picture.format or "", b"") not in end
            ):  # cut short, or with more of its camera's behind it
                _decode(picture, size)
    except Image.DecompressionBombError as error:
        raise BadRow("huge picture", f"is too large: {error}".partition(", could")[0]) from error
    except FileNotFoundError as error:
        raise BadRow("missing picture", "is not there") from error
    except (OSError, ValueError) as error:  # Pillow's own are among them
        closed = getattr(error, "strerror", None)
        reason = f"cannot be read: {closed}" if closed else "is no picture that can be read"
        raise BadRow("unreadable picture", reason) from error
    return hashlib.sha256(b"%d\0%b\0%b" % (size, start, end)).hexdigest()


def _decode(picture: Image.Image, size: int) -> None:
    """Decode a picture.

    Raises:
        BadRow: it is not whole.
    """
    try:
        picture.load()
    except (OSError, SyntaxError) as error:  # Pillow's word for a damaged PNG
        raise BadRow("truncated picture", f"ends in the middle of the picture ({size:,} bytes)") from error
