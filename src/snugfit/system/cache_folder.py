"""The user's cache: the one folder for what Snugfit keeps for later runs and can make anew."""

from __future__ import annotations

import os
from pathlib import Path

SPARE_BYTES = 1 << 30
"""Free space on its disk that is left to others."""


def cache_folder() -> Path:
    """Return the folder of plans, calibrations and tokens; XDG_CACHE_HOME moves it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "snugfit"
