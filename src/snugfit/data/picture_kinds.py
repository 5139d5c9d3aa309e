"""Kinds of files of pictures, and of changes that are drawn for pictures that are trained on. To import it loads no torch."""

from __future__ import annotations

from collections.abc import Sequence

from snugfit.errors import SettingError

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"))
"""Kinds of pictures that Pillow reads everywhere."""
AUGMENTATIONS = ("crop", "flip", "rotate", "color", "erase")


def check_augmentations(names: Sequence[str]) -> None:
    """See that each is one that there is, and stands there once.

    Raises:
        SettingError: one is not.

    >>> check_augmentations(("crop", "crop"))
    Traceback (most recent call last):
    snugfit.errors.SettingError: data.augment: 'crop' stands there twice. Choose from crop, flip, rotate, color, erase.
    """
    for name in names:
        if name not in AUGMENTATIONS or names.count(name) > 1:
            problem = "stands there twice" if name in AUGMENTATIONS else "is no augmentation"
            raise SettingError(
                "data.augment", f"'{name}' {problem}", f"Choose from {', '.join(AUGMENTATIONS)}."
            )
