"""Pictures on disk: their headers and ends, which say before a run whether they can be read."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.data.bad_rows import BadRow
from snugfit.data.files.file_kinds import PICTURE_SUFFIXES
from snugfit.data.files.path_rows import FileKind, read_files
from snugfit.data.files.tar_members import opened_file
from snugfit.data.labels.label_sets import LabelSets
from snugfit.data.sources import RowSource
from snugfit.data.splits.near_duplicates import near_pictures
from snugfit.data.usable_rows import Part

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
    label: str | LabelSets | None,
    known: Sequence[str] | None = None,
    folder: Path | None = None,
) -> tuple[Part, list[str]]:
    """Return the pictures of a source that can be read, the faults of the others, and a digest of each picture, as `read_files` does.

    A picture's beginning and its end are read, not all of it: damage in the middle is met when it is decoded.
    """
    return read_files(source, setting, PICTURE_FILES, column=image, label=label, known=known, folder=folder)


def _looked_at(path: str) -> str:
    """Return a digest of a picture's size in bytes, its beginning and its end, once its header can be read.

    Raises:
        BadRow: there is no picture that can be read.
    """
    from PIL import Image

    try:
        with opened_file(path) as file:
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


PICTURE_FILES = FileKind(
    noun="picture",
    plural="pictures",
    suffixes=PICTURE_SUFFIXES,
    setting="data.image",
    digest=_looked_at,
    near=near_pictures,
)
