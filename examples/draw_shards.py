"""Draw pictures of shapes by the seed, into shards as WebDataset writes them.

python examples/draw_shards.py shapes
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
from pathlib import Path

from PIL import Image, ImageDraw

SHAPES = ("circle", "square", "triangle")
SIDE, PICTURES, SHARDS = 32, 600, 4


def draw(shape: str, rng: random.Random) -> Image.Image:
    """Return a picture of a shape, of any place, size and colour, on another."""
    picture = Image.new("RGB", (SIDE, SIDE), tuple(rng.randrange(0, 100) for _ in range(3)))
    size = rng.randrange(10, 22)
    left, top = (rng.randrange(SIDE - size) for _ in range(2))
    right, bottom, colour = left + size, top + size, tuple(rng.randrange(120, 256) for _ in range(3))
    pen = ImageDraw.Draw(picture)
    if shape == "circle":
        pen.ellipse((left, top, right, bottom), fill=colour)
    elif shape == "square":
        pen.rectangle((left, top, right, bottom), fill=colour)
    else:
        pen.polygon((left, bottom, right, bottom, (left + right) // 2, top), fill=colour)
    return picture


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    """Put a file into a shard."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def main(folder: Path) -> None:
    """Write the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    for number in range(SHARDS):
        with tarfile.open(folder / f"shapes-{number:03d}.tar", "w") as shard:
            for row in range(number, PICTURES, SHARDS):
                label = rng.randrange(len(SHAPES))
                file = io.BytesIO()
                draw(SHAPES[label], rng).save(file, "PNG")
                add(shard, f"{row:06d}.png", file.getvalue())
                add(shard, f"{row:06d}.cls", str(label).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
