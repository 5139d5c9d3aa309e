"""Shards that are written for a test."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def write_shard(path: Path, members: Mapping[str, bytes | str]) -> Path:
    """Write members to a tar file, in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    return path


def png(number: int) -> bytes:
    """A picture of its own for each number."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()
