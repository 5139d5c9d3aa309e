"""Transforms of torchvision (v2) by name, as augmentations of pictures and of their masks alike."""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from snugfit.data.files.file_kinds import of_torchvision
from snugfit.errors import MissingExtra, SettingError, nearest
from snugfit.system.torchvision_operators import declare_torchvision_operators

if TYPE_CHECKING:
    from PIL import Image

UNKNOWN = 255
"""The pixel of a mask that is not scored."""
_SETTING = "data.augment"
_INSTEAD = "Choose transforms from a picture of Pillow to one of the same size and mode: size, mean and deviation are the model's."
_DRAWS = 8
"""By which it is seen before a run what transforms make, as many of them change a picture now and then."""


def transformed(
    picture: Image.Image, mask: Image.Image | None, augment: Sequence[str]
) -> tuple[Image.Image, Image.Image | None]:
    """Return a picture, and its mask, after the transforms of torchvision among the names, which draw from torch's global generator.

    Args:
        mask: gray, as large as the picture. It is moved as the picture is, to the nearest pixel; what comes in from outside is `UNKNOWN`.
    Raises:
        SettingError: they make something else of the picture than one of its size and mode, or do not take masks.
    """
    from PIL import Image

    form = _form(picture)
    for name in of_torchvision(augment):
        transform = _transform(name)
        try:
            if mask is None:
                picture = transform(picture)
            else:
                picture, moved = transform(picture, _as_mask(mask))
                mask = Image.fromarray(np.asarray(moved))
        except (TypeError, ValueError, ArithmeticError, RuntimeError, NotImplementedError) as error:
            taken = "a picture" if mask is None else "a picture with its mask"
            raise SettingError(
                _SETTING, f"{name} does not take {taken}: {_first_line(error)}", _INSTEAD
            ) from error
        if not isinstance(picture, Image.Image):
            raise SettingError(
                _SETTING, f"{name} makes a {type(picture).__name__} of a picture of Pillow", _INSTEAD
            )
    if _form(picture) != form or (mask is not None and mask.size != picture.size):
        names = ", ".join(of_torchvision(augment))
        raise SettingError(
            _SETTING, f"of a picture of {form} {names} makes one of {_form(picture)}", _INSTEAD
        )
    return picture, mask


def check_transforms(augment: Sequence[str], size: tuple[int, int], channels: int, *, masks: bool) -> None:
    """See before a run that pictures of a size in pixels, and masks, come out of the transforms of torchvision as they have to.

    Raises:
        MissingExtra: torchvision is not installed.
        SettingError: they do not; or torchvision has no transform of that name, or with such arguments.
    """
    if not of_torchvision(augment):
        return
    from PIL import Image

    picture = Image.new("L" if channels == 1 else "RGB", size)
    mask = Image.new("L", size) if masks else None
    with torch.random.fork_rng(devices=()):
        for _ in range(_DRAWS):
            transformed(picture, mask, augment)


@cache
def _transform(name: str) -> Callable[..., Any]:
    """Return the transform of a name with its arguments.

    Raises:
        As `check_transforms`.
    """
    declare_torchvision_operators()
    try:
        from torchvision import tv_tensors
        from torchvision.transforms import v2
    except ImportError as error:
        raise MissingExtra("torchvision", "torchvision") from error
    kinds = {each: made for each, made in vars(v2).items() if inspect.isclass(made)}
    names = [each for each, made in kinds.items() if issubclass(made, v2.Transform)]

    def value(node: ast.expr) -> Any:
        of = node.func if isinstance(node, ast.Call) else node
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            kind = kinds.get(node.value.attr)  # such as v2.InterpolationMode.BILINEAR
            if kind is not None and issubclass(kind, enum.Enum):
                return kind[node.attr]
        if isinstance(of, ast.Attribute):
            if of.attr not in names:
                raise SettingError(_SETTING, f"torchvision has no v2.{of.attr}", nearest(of.attr, names))
            made = getattr(v2, of.attr)
            call = node if isinstance(node, ast.Call) else ast.Call(of, [], [])
            settings = {str(each.arg): value(each.value) for each in call.keywords}
            if "fill" in inspect.signature(made).parameters:
                settings["fill"] = {tv_tensors.Mask: UNKNOWN, "others": settings.get("fill", 0)}
            return made(*map(value, call.args), **settings)
        return list(map(value, node.elts)) if isinstance(node, ast.List) else ast.literal_eval(node)

    try:
        transform: Callable[..., Any] = value(ast.parse(name, mode="eval").body)
    except (TypeError, ValueError, ArithmeticError, KeyError, SyntaxError) as error:
        raise SettingError(
            _SETTING,
            f"{name} cannot be made: {_first_line(error)}",
            "Write it as torchvision does, such as v2.RandomPosterize(bits=4).",
        ) from error
    return transform


def _first_line(error: Exception) -> str:
    """Return the first line of an error, or its kind where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _as_mask(mask: Image.Image) -> Any:
    from torchvision import tv_tensors

    return tv_tensors.Mask(torch.from_numpy(np.array(mask, dtype=np.uint8)))


def _form(picture: Image.Image) -> str:
    return f"{picture.width} × {picture.height} pixels, mode {picture.mode}"
