"""Decoded pictures and masks in the user's cache: each is decoded once, and by every later epoch and run read as it is."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_cache import FileCache, code_digest
from snugfit.data.pictures.mask_files import opened_mask
from snugfit.data.pictures.pixels import opened

if TYPE_CHECKING:
    from PIL import Image

_SIZE = struct.Struct("<III")
"""Width, height and channels."""
_MODES = {"L": 1, "RGB": 3}
_MASK = "mask"


class PictureCache:
    """Decoded pictures and masks on the disk, up to so many bytes in all; what has no room is decoded each time.

    Args:
        limit: bytes of all entries together, of this and other data sets.
    """

    def __init__(self, limit: int) -> None:
        self._files = FileCache("pictures", limit, ("Decoded pictures", "they are decoded in each epoch"))

    def opened(self, source: str, channels: int = 3) -> Image.Image:
        """Return a picture as `pixels.opened` does.

        Raises:
            OSError: it cannot be decoded.
        """
        return self._cached(source, channels, lambda: opened(source, channels))

    def opened_mask(self, source: str) -> Image.Image:
        """Return a mask as `mask_files.opened_mask` does.

        Raises:
            BadRow: it is none.
        """
        return self._cached(source, _MASK, lambda: opened_mask(source))

    def _cached(self, source: str, kind: int | str, decode: Callable[[], Image.Image]) -> Image.Image:
        import PIL

        try:
            entry = self._files.entry(source, kind, PIL.__version__, _code())
        except OSError:
            return decode()  # which says what is wrong
        if (held := self._files.read(entry)) is not None:
            return _picture(held)
        picture = decode()
        size = _SIZE.pack(picture.width, picture.height, _MODES[picture.mode])
        self._files.keep(entry, size + picture.tobytes())
        return picture


@functools.cache
def _code() -> str:
    return code_digest(Path(__file__).parent)


def _picture(held: memoryview) -> Image.Image:
    from PIL import Image

    width, height, channels = _SIZE.unpack(held[: _SIZE.size])
    mode = next(mode for mode, count in _MODES.items() if count == channels)
    pixels: Any = held[_SIZE.size :]  # a buffer, which Pillow's types do not know
    return Image.frombuffer(mode, (width, height), pixels, "raw", mode, 0, 1)
