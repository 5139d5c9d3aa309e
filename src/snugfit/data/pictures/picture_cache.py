"""Decoded pictures in the user's cache: a picture is decoded once, and by every later epoch and run read as it is."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_cache import FileCache
from snugfit.data.pictures.pixels import opened

if TYPE_CHECKING:
    from PIL import Image

_SIZE = struct.Struct("<III")
"""Width, height and channels."""
_MODES = {1: "L", 3: "RGB"}


class PictureCache:
    """Decoded pictures on the disk, up to so many bytes in all; what has no room is decoded each time.

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
        import PIL

        entry = self._files.entry(source, channels, PIL.__version__)
        if (held := self._files.read(entry)) is not None:
            return _picture(held)
        picture = opened(source, channels)
        size = _SIZE.pack(picture.width, picture.height, channels)
        self._files.keep(entry, size + picture.tobytes())
        return picture


def _picture(held: memoryview) -> Image.Image:
    from PIL import Image

    width, height, channels = _SIZE.unpack(held[: _SIZE.size])
    pixels: Any = held[_SIZE.size :]  # a buffer, which Pillow's types do not know
    return Image.frombuffer(_MODES[channels], (width, height), pixels, "raw", _MODES[channels], 0, 1)
