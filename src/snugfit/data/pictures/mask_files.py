"""Masks on disk: pictures whose pixels are numbers of classes, which are looked at before a run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.data.bad_rows import BadRow
from snugfit.data.files.tar_members import file_of
from snugfit.data.pictures.pixels import upright_size
from snugfit.data.pictures.torchvision_transforms import UNKNOWN

if TYPE_CHECKING:
    from PIL import Image

INSTANCES = "Instance masks, which number objects, and boxes are not learned: write the number of its class into each pixel."
DecodeMask = Callable[[str], Any]
"""From a path to a mask as `opened_mask` gives it."""


def opened_mask(path: str) -> Image.Image:
    """Return a mask: a picture whose pixels are numbers of classes, of one channel or of a palette.

    Raises:
        BadRow: it is something else.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with (
            warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
            file_of(path) as file,
            Image.open(file) as picture,
        ):
            picture.load()
            mode, lossy, mask = picture.mode, picture.format == "JPEG", picture.copy()
    except Image.DecompressionBombError as error:
        raise BadRow("huge mask", f"is too large: {error}".partition(", could")[0]) from error
    except FileNotFoundError as error:
        raise BadRow("missing mask", "is not there") from error
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise BadRow("unreadable mask", "is no picture that can be read") from error
    if lossy:
        raise BadRow(
            "lossy mask",
            "is a JPEG, whose compression changes the numbers of classes: write masks anew, as PNG",
        )
    if mode.startswith("I"):
        raise BadRow("unusable mask", f"has numbers of 16 bits or more. {INSTANCES}")
    if mode not in ("L", "P", "1"):
        raise BadRow(
            "unusable mask",
            f"is in colour ({mode}): write the number of its class into each pixel, in gray or a palette",
        )
    return Image.fromarray(
        np.asarray(mask).astype(np.uint8)
    )  # without its palette, in which nothing is resized


def look_at_mask(path: str, mask: str, classes: int | None, decode: DecodeMask) -> tuple[int, bool]:
    """Return the highest number of a class in a mask, and whether a part of it is unknown.

    Args:
        path: of its picture.
        classes: how many there may be; None for any number below 255.
        decode: decodes masks, as `opened_mask` does or from a cache.
    Raises:
        BadRow: it cannot be used.
    """
    values = decode(mask)
    try:
        sides = upright_size(path)
    except (OSError, SyntaxError) as error:
        raise BadRow("unreadable picture", "lies over a picture that cannot be read") from error
    if values.size != sides:
        raise BadRow(
            "mask of another size",
            f"is {'×'.join(map(str, values.size))}, its picture {'×'.join(map(str, sides))}",
        )
    numbers = np.unique(np.asarray(values))
    own = numbers[numbers != UNKNOWN]
    if not len(own):
        raise BadRow(
            "empty mask", f"is {UNKNOWN} everywhere, which is not scored: nothing is learned from it"
        )
    highest = int(own[-1])
    if classes is not None and highest >= classes:
        raise BadRow("unknown class", f"has class {highest}, and the classes are 0 to {classes - 1}")
    return highest, len(own) < len(numbers)
