"""Dark pictures with a bright square, whose mask is 1 where it lies and 255 in the first line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_shapes(folder: Path) -> None:
    """Write sixteen pictures of 24 by 20 pixels, and their masks, to folders of that names in `folder`."""
    drawn = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(16):
        picture, mask = drawn.integers(0, 90, (20, 24, 3)).astype(np.uint8), np.zeros((20, 24), np.uint8)
        top, left = drawn.integers(1, 8, 2)
        picture[top : top + 10, left : left + 12] += 150
        mask[top : top + 10, left : left + 12] = 1
        mask[0] = 255
        Image.fromarray(picture).save(folder / f"images/{number}.png")
        Image.fromarray(mask).save(folder / f"masks/{number}.png")
