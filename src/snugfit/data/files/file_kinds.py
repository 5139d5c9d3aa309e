"""Files by their names, and their kinds: pictures, sounds and predictions, and changes that are drawn for those that are trained on. To import it loads no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from pathlib import Path

from snugfit.errors import DataError, SettingError

PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"))
"""Kinds of pictures that Pillow reads everywhere."""
AUGMENTATIONS = ("crop", "flip", "rotate", "color", "erase")
_OF_TORCHVISION = "v2."
"""Beginning of the names of torchvision's transforms among them, such as v2.RandomPosterize(bits=4)."""

SOUND_SUFFIXES = frozenset((".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff", ".au"))
"""Kinds of sounds that soundfile reads everywhere."""
SOUND_AUGMENTATIONS = ("crop", "time_mask", "frequency_mask")

SOURCE_LINE = "source_line"
"""Column of predictions that has the line of each row in the file that they are for; no rows of users have one."""
_HEAD_BYTES = 2**16


def path_of(name: str | Path, folder: Path | None) -> Path:
    """Return the path of a file or a folder by its name; a relative one is looked for in `folder`."""
    path = Path(name).expanduser()
    return path if folder is None else folder / path


def holds_predictions(path: Path) -> bool:
    """Return whether a table of texts was written as predictions, by its first line: a header, or a first row in JSON.

    Raises:
        DataError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return SOURCE_LINE.encode() in file.readline(_HEAD_BYTES)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", "Name a file that can be read.") from error


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures in a folder, as `files_in` does."""
    return files_in(folder, PICTURE_SUFFIXES)


def files_in(folder: Path, suffixes: Set[str]) -> list[Path]:
    """Return the files of some suffixes in a folder and in those below it, in order of their paths; hidden ones are left out.

    Raises:
        DataError: it cannot be read.
    """
    files: list[Path] = []

    def refuse(error: OSError) -> None:
        raise DataError(
            folder, f"cannot be read: {error.strerror}", "Name a folder that can be read."
        ) from error

    seen: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen:  # a link to a folder above, or a second one to the same
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        shown = (name for name in names if not name.startswith("."))
        files += [Path(place, name) for name in shown if os.path.splitext(name)[1].lower() in suffixes]
    return sorted(files)


def of_torchvision(names: Sequence[str]) -> list[str]:
    """Return those of the augmentations of pictures that are transforms of torchvision."""
    return [name for name in names if name.startswith(_OF_TORCHVISION)]


def check_augmentations(
    names: Sequence[str], among: Sequence[str] = AUGMENTATIONS, setting: str = "data.augment"
) -> None:
    """See that each is one that there is, and stands there once.

    Raises:
        SettingError: one is not.

    >>> check_augmentations(("crop", "crop"))
    Traceback (most recent call last):
    snugfit.errors.SettingError: data.augment: 'crop' stands there twice. Choose from crop, flip, rotate, color, erase, or transforms of torchvision such as v2.TrivialAugmentWide.
    """
    own = of_torchvision(names) if among is AUGMENTATIONS else []
    for name in names:
        if name not in [*among, *own] or names.count(name) > 1:
            problem = "stands there twice" if name in [*among, *own] else "is no augmentation"
            others = (
                ", or transforms of torchvision such as v2.TrivialAugmentWide"
                if among is AUGMENTATIONS
                else ""
            )
            raise SettingError(setting, f"'{name}' {problem}", f"Choose from {', '.join(among)}{others}.")
