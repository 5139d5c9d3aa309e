"""Operations on pictures of Pillow, each by a strength between 0 and 1, from which augmentations are drawn.

The strongest of each is that of AutoAugment (Cubuk et al. 2018, arXiv:1805.09501, table 6) as torchvision has it. What comes in from outside a
picture is black.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from PIL.Image import Image

_SHEAR = 0.3
_DEGREES = 30.0
_ENHANCED = 0.9
_WHITE = 255
_BITS = 8
_LOST_BITS = 4

Operation = Callable[["Image", float], "Image"]


def _shear_x(picture: Image, strength: float) -> Image:
    return _mapped(picture, 1, _SHEAR * strength, 0, 0, 1, 0)


def _shear_y(picture: Image, strength: float) -> Image:
    return _mapped(picture, 1, 0, 0, _SHEAR * strength, 1, 0)


def _rotate(picture: Image, strength: float) -> Image:
    return picture.rotate(_DEGREES * strength)


def _brightness(picture: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Brightness(picture).enhance(1 + _ENHANCED * strength)


def _color(picture: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Color(picture).enhance(1 + _ENHANCED * strength)


def _contrast(picture: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Contrast(picture).enhance(1 + _ENHANCED * strength)


def _sharpness(picture: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Sharpness(picture).enhance(1 + _ENHANCED * strength)


def _posterize(picture: Image, strength: float) -> Image:
    from PIL import ImageOps

    return ImageOps.posterize(picture, _BITS - round(_LOST_BITS * strength))


def _solarize(picture: Image, strength: float) -> Image:
    from PIL import ImageOps

    return ImageOps.solarize(picture, round(_WHITE * (1 - strength)))


def _autocontrast(picture: Image, _strength: float) -> Image:
    from PIL import ImageOps

    return ImageOps.autocontrast(picture)


def _equalize(picture: Image, _strength: float) -> Image:
    from PIL import ImageOps

    return ImageOps.equalize(picture)


def translations(longest: float) -> dict[str, Operation]:
    """Return the operations that move a picture to the left and up, or to the right and down by strengths below 0.

    Args:
        longest: way, as part of the picture's side.
    """

    def translate_x(picture: Image, strength: float) -> Image:
        return _mapped(picture, 1, 0, longest * strength * picture.width, 0, 1, 0)

    def translate_y(picture: Image, strength: float) -> Image:
        return _mapped(picture, 1, 0, 0, 0, 1, longest * strength * picture.height)

    return {"translate_x": translate_x, "translate_y": translate_y}


def _mapped(picture: Image, *matrix: float) -> Image:
    from PIL import Image as images

    return picture.transform(picture.size, images.Transform.AFFINE, matrix, images.Resampling.NEAREST)


SIGNED: Mapping[str, Operation] = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "rotate": _rotate,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
}
"""Operations of strengths between -1 and 1, whose sign is drawn too."""

UNSIGNED: Mapping[str, Operation] = {
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}


def changed(picture: Image, operations: Mapping[str, Operation], name: str, strength: float) -> Image:
    """Return a picture after the operation of this name; where it has a sign, that is drawn from torch's global generator."""
    if name in UNSIGNED:
        return operations[name](picture, strength)
    sign = 1 if drawn_number(2) else -1
    return operations[name](picture, sign * strength)


def drawn_name(operations: Mapping[str, Operation]) -> str:
    """Return a name, each as often as the others, drawn from torch's global generator."""
    return list(operations)[drawn_number(len(operations))]


def drawn_number(below: int) -> int:
    """Return a whole number from 0 on, below another, drawn from torch's global generator."""
    return int(torch.randint(below, ()))


def drawn_part() -> float:
    """Return a number from 0 to 1, drawn from torch's global generator."""
    return float(torch.rand(()))
