"""The files that a command reads and writes, looked at before a model is loaded for them."""

from __future__ import annotations

import os
from pathlib import Path

from snugfit.data.sources import read_beginning
from snugfit.errors import DataError, short_path


def check_data(data: str) -> None:
    """See that there are rows.

    Raises:
        DataError: there is no such file, or none that is read.
    """
    if not Path(data).exists():
        read_beginning(data, setting="data")


def check_output(
    output: Path, source: str, setting: str = "-o", name: str = "predictions.csv", kind: str = "rows"
) -> None:
    """See that a file can be written for what is read from `source`; folders that are missing on its way are made with it.

    Args:
        setting: that names the file.
        name: of such a file, in an example.
        kind: of what the source holds.
    Raises:
        DataError: it cannot, or is the source itself.
    """
    if output.exists() and Path(source).exists() and output.samefile(source):
        raise DataError(setting, f"{output} is the file of the {kind}", "Name another file.")
    if output.is_dir():
        raise DataError(setting, f"{output} is a folder", f"Name a file in it: {output / name}")
    _check_writable(output, output.absolute().parent, setting)


def check_output_folder(folder: Path, setting: str) -> None:
    """See that files can be written in a folder, which is made with those that are missing on its way.

    Raises:
        DataError: they cannot, or it is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise DataError(setting, f"{folder} is a file", "Name a folder.")
    _check_writable(folder, folder.absolute(), setting)


def _check_writable(output: Path, into: Path, setting: str) -> None:
    """See that something can be written into a folder, or into the nearest on its way that is there."""
    folder = next(each for each in (into, *into.parents) if each.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        kind = "a folder that may not be written in" if folder.is_dir() else "no folder"
        raise DataError(
            setting,
            f"{output} cannot be written: {short_path(str(folder))} is {kind}",
            "Choose another output.",
        )
