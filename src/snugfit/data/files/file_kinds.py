"""Sources by their names, and their kinds: data sets of the hub, shards, pictures, sounds and predictions, and changes that are drawn for those that are trained on. To import it loads no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence, Set
from pathlib import Path

from snugfit.data.files.tar_members import TAR
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import is_python_path

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

HUB = "hf://"
"""The beginning of a source that is a data set's name: hf://OWNER/NAME/CONFIG:SPLIT, where CONFIG and SPLIT may be left out."""
_OF_SPLIT, OF_SPLITS = ("state.json", "dataset_info.json"), "dataset_dict.json"
"""Files by which a folder shows that it is one data set, or several splits."""
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def path_of(name: str | Path, folder: Path | None) -> Path:
    """Return the path of a file or a folder by its name; a relative one is looked for in `folder`."""
    path = Path(name).expanduser()
    return path if folder is None else folder / path


def is_hub_name(source: str) -> bool:
    """Return whether a source is the name of a data set on the hub.

    >>> is_hub_name("hf://stanfordnlp/imdb:train"), is_hub_name("imdb.csv")
    (True, False)
    """
    return source.startswith(HUB)


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds a data set that `save_to_disk` has written, or several splits of one."""
    return (folder / OF_SPLITS).is_file() or all((folder / name).is_file() for name in _OF_SPLIT)


def is_shards(source: object, folder: Path | None = None) -> bool:
    """Return whether a source is tar files: one, several by a pattern, or a folder of them.

    >>> is_shards("shards-{000..003}.tar"), is_shards("rows.csv")
    (True, False)
    """
    if callable(source) or is_python_path(str(source)) or "://" in str(source):
        return False
    name = str(source)
    if name.lower().endswith((TAR, *COMPRESSED)):
        return True
    path = path_of(name, folder)
    if not path.is_dir():
        return False
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    tars = any(entry.suffix.lower() == TAR and entry.is_file() for entry in entries)
    return tars and not any(entry.is_dir() for entry in entries)


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


def files_in(folder: Path, suffixes: Set[str] | None = None) -> list[Path]:
    """Return the files in a folder and in those below it, in order of their paths; hidden ones are left out.

    Args:
        suffixes: of the files; None for all.
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
        files += [
            Path(place, name)
            for name in shown
            if suffixes is None or os.path.splitext(name)[1].lower() in suffixes
        ]
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
