"""A picture as numbers for a model: decoded, cut, resized and normalised by Pillow, and changed by chance where it is trained on.

Pillow does what torchvision does with Pillow's pictures. torchvision is imported where one of its transforms is named alone: it has no build
beside torch's own for processors, and transformers imports whichever it finds, for texts too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snugfit.data.files.tar_members import file_of
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.torchvision_transforms import UNKNOWN, transformed

if TYPE_CHECKING:
    from PIL import Image

_LEAST_AREA = 0.35
_RATIOS = (3 / 4, 4 / 3)
_DEGREES = 15.0
_JITTER = 0.3
_ERASED = 0.25
"""The part of pictures of which a rectangle is erased."""
_ERASED_AREA = (0.02, 0.2)
_TRIES = 10
_LYING = (5, 6, 7, 8)
"""Orientations of EXIF in which width and height are exchanged."""


def pixels(
    picture: Image.Image,
    picture_format: PictureFormat,
    augment: Sequence[str] = (),
    change: Callable[[Image.Image], Image.Image] | None = None,
) -> Tensor:
    """Return a picture as a model sees it: float32, shape (channels, height, width).

    Args:
        augment: names of `AUGMENTATIONS` and transforms of torchvision, which come last of them but for `erase`; what they draw comes from torch's global generator.
        change: is made to the placed picture, while its pixels are numbers of 8 bits.
    """
    picture, _ = _drawn(picture, None, picture_format, augment)
    if change is not None:
        picture = change(picture)
    return _numbers(picture, picture_format, augment)


def pixels_with_mask(
    picture: Image.Image, mask: Image.Image, picture_format: PictureFormat, augment: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """Return a picture as `pixels` does, and its mask, turned, cut and mirrored by the same draws: uint8, shape (height, width).

    Each pixel of the mask is one of those that it had; what a turn brings in from outside is `UNKNOWN`.
    """
    picture, drawn = _drawn(picture, mask, picture_format, augment)
    return _numbers(picture, picture_format, augment), torch.from_numpy(np.array(drawn, dtype=np.uint8))


def _drawn(
    picture: Image.Image, mask: Image.Image | None, picture_format: PictureFormat, augment: Sequence[str]
) -> tuple[Image.Image, Image.Image | None]:
    """Return a picture of the format's size after all that is drawn for its colours and places, and its mask after what is drawn for places."""
    from PIL import Image

    how, nearest = Image.Resampling[picture_format.interpolation.upper()], Image.Resampling.NEAREST
    if mask is not None:
        # what places a picture is drawn first, so that the same state places both alike
        state = torch.get_rng_state()
        mask = _placed(mask, picture_format, augment, nearest, nearest, outside=UNKNOWN)
        torch.set_rng_state(state)
    picture = _placed(picture, picture_format, augment, how, Image.Resampling.BILINEAR)
    if "color" in augment:
        picture = _jittered(picture)
    return transformed(picture, mask, augment)


def _numbers(picture: Image.Image, picture_format: PictureFormat, augment: Sequence[str]) -> Tensor:
    """Return a picture of the format's size as a model sees it, where that is drawn with a part erased."""
    width, height = picture_format.width, picture_format.height
    values = np.asarray(picture, dtype=np.uint8).reshape(height, width, picture_format.channels)
    tensor = torch.from_numpy(values.transpose(2, 0, 1).copy()).to(torch.float32) / 255
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (picture_format.mean, picture_format.std))
    tensor = (tensor - mean) / std
    if "erase" in augment and _between(0, 1) < _ERASED:
        left, top, right, bottom = _part(width, height, _ERASED_AREA)
        tensor[:, top:bottom, left:right] = 0  # the mean of all pictures
    return tensor


def _placed(
    picture: Image.Image,
    picture_format: PictureFormat,
    augment: Sequence[str],
    how: Image.Resampling,
    turned: Image.Resampling,
    outside: int | None = None,
) -> Image.Image:
    """Return a picture turned, cut, resized and mirrored.

    Args:
        how, turned: the interpolation of a new size, and of a turn.
        outside: the value of what a turn brings in; None for black.
    """
    from PIL import Image

    width, height = picture_format.width, picture_format.height
    if "rotate" in augment:
        picture = picture.rotate(_between(-_DEGREES, _DEGREES), turned, fillcolor=outside)
    if "crop" in augment:
        picture = picture.resize((width, height), how, box=_random_part(*picture.size))
    elif picture_format.resize is None:
        picture = picture.resize((width, height), how)
    else:
        picture = _middle(_shorter_side(picture, picture_format.resize, how), width, height)
    if "flip" in augment and _between(0, 1) < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return picture


def upright_size(path: str) -> tuple[int, int]:
    """Return width and height of a picture as `opened` gives it, by its header alone.

    Raises:
        OSError: it cannot be read.
    """
    from PIL import ExifTags, Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with file_of(path) as file, Image.open(file) as picture:
            width, height = picture.size
            lies = picture.getexif().get(ExifTags.Base.Orientation, 1) in _LYING
    return (height, width) if lies else (width, height)


def opened(source: Any, channels: int = 3) -> Image.Image:
    """Return a picture decoded, upright as its camera held it, in gray or in colour; what is transparent is white.

    Args:
        source: a path, an open file, a picture of Pillow, or an array of uint8, shape (height, width) or (height, width, 3).
        channels: 1 for gray, 3 for colour.
    Raises:
        OSError: it cannot be decoded.
    """
    from PIL import Image, ImageOps

    if isinstance(source, np.ndarray):
        return _in_mode(Image.fromarray(source), channels)
    if isinstance(source, Image.Image):
        return _in_mode(ImageOps.exif_transpose(source), channels)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", Image.DecompressionBombWarning
        )  # those too large for any use are refused
        with file_of(source) as file, Image.open(file) as picture:
            return _in_mode(ImageOps.exif_transpose(picture), channels)


def _in_mode(picture: Image.Image, channels: int) -> Image.Image:
    from PIL import Image

    if picture.mode.startswith("I"):  # of 16 bits, of which Pillow would cut off what is above 255
        values = np.asarray(picture).astype(np.uint32)
        picture = Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return picture.convert("L" if channels == 1 else "RGB")


def _shorter_side(picture: Image.Image, length: int, how: Image.Resampling) -> Image.Image:
    width, height = picture.size
    longer = int(length * max(width, height) / min(width, height))
    return picture.resize((length, longer) if width <= height else (longer, length), how)


def _middle(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Return the middle of a picture; where it is too small, with black around it."""
    left, top = (picture.width - width) // 2, (picture.height - height) // 2  # as transformers rounds
    return picture.crop((left, top, left + width, top + height))


def _random_part(width: int, height: int) -> tuple[int, int, int, int]:
    return _part(width, height, (_LEAST_AREA, 1.0))


def _part(width: int, height: int, areas: tuple[float, float]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a random part: of an area between two, by the whole, and of a ratio between 3:4 and 4:3.

    Where none of ten fits, it is the whole.
    """
    for _ in range(_TRIES):
        area = _between(*areas) * width * height
        ratio = math.exp(_between(*map(math.log, _RATIOS)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, top = int(_between(0, width - wide + 1)), int(_between(0, height - high + 1))
            return left, top, left + wide, top + high
    return 0, 0, width, height


def _jittered(picture: Image.Image) -> Image.Image:
    from PIL import ImageEnhance

    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        picture = change(picture).enhance(_between(1 - _JITTER, 1 + _JITTER))
    return picture


def _between(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))
