"""Folders of pictures and of masks beside each other, by their names."""

from __future__ import annotations

import os
from pathlib import Path

from snugfit.data.files.file_kinds import pictures_in
from snugfit.errors import DataError

_PICTURES = ("images", "image", "imgs", "pictures", "photos")
_MASKS = ("masks", "mask", "labels", "annotations", "segmentations")


def mask_folders(folder: Path) -> tuple[Path, Path] | None:
    """Return the folders of pictures and of masks in a folder; None where it has not both.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        names = {path.name.casefold(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    except OSError as error:
        raise DataError(
            folder, f"cannot be read: {error.strerror}", "Name a folder that can be read."
        ) from error
    pictures = next((names[name] for name in _PICTURES if name in names), None)
    masks = next((names[name] for name in _MASKS if name in names), None)
    return None if pictures is None or masks is None else (pictures, masks)


def paired(pictures: Path, masks: Path) -> tuple[dict[Path, Path], list[Path]]:
    """Return the mask of each picture, which has its name but for the suffix and for a `_mask` behind it, and pictures without one.

    Raises:
        DataError: two pictures, or two masks, have one name.
    """
    own = _by_name(pictures, [(_name(path, pictures), path) for path in pictures_in(pictures)])
    by_name = _by_name(
        masks, [(_name(path, masks).removesuffix("_mask"), path) for path in pictures_in(masks)]
    )
    pairs, missing = {}, []
    for name, path in own.items():
        mask = by_name.get(name)
        if mask is None:
            missing.append(path)
        else:
            pairs[_absolute(path)] = _absolute(mask)
    return pairs, missing


def _by_name(folder: Path, named: list[tuple[str, Path]]) -> dict[str, Path]:
    """Return files by their names.

    Raises:
        DataError: two have one name, so it is not known which mask is of which picture.
    """
    files: dict[str, Path] = {}
    for name, path in named:
        if name in files:
            one, other = (each.relative_to(folder).as_posix() for each in (files[name], path))
            raise DataError(
                folder,
                f"{one} and {other} have one name beside their suffix, by which pictures and masks are paired",
                "Rename one of them, with its picture or mask.",
            )
        files[name] = path
    return files


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
