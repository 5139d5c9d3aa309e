"""The folders of checkpoints by their names. To import it loads no torch."""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"update-\d+(-window-\d+)?")


def newest_first(root: Path) -> list[Path]:
    """Return the folders under `root` that are named as checkpoints are: a copy under another name is the user's."""
    named = [path for path in root.glob("*") if path.is_dir() and _NAME.fullmatch(path.name)]
    return sorted(named, key=lambda path: path.name, reverse=True)


def newest_in(root: Path) -> Path | None:
    """Return the newest checkpoint under `root`, whole or not."""
    return next(iter(newest_first(root)), None)


def any_in(root: Path) -> bool:
    """Return whether there is a checkpoint under `root`, whole or not."""
    return newest_in(root) is not None
