"""Sounds on disk: their headers and ends, which say before a run whether they can be read."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from snugfit.data.bad_rows import BadRow
from snugfit.data.files.file_kinds import SOUND_SUFFIXES
from snugfit.data.files.path_rows import FileKind
from snugfit.data.files.tar_members import opened_file
from snugfit.errors import MissingExtra

_ENDS_BYTES = 4096
_LOWEST_RATE, _HIGHEST_RATE = 1_000, 768_000
_FLOATING = ("FLOAT", "DOUBLE")
"""Kinds of samples that can be no numbers."""

_BLOCK = 1 << 20
_STREAMED = (0, 0xFFFFFFFF)
"""Sizes in the header of a WAV file whose writer did not know its end."""


def seconds_of(paths: Sequence[Path]) -> list[float]:
    """Return the lengths of sounds by their headers; those that cannot be read have none.

    Raises:
        MissingExtra: soundfile is not installed.
    """
    soundfile = sound_library()
    lengths = []
    for path in paths:
        with suppress(OSError, soundfile.LibsndfileError):
            with opened_file(str(path)) as file:
                about = soundfile.info(file)
            lengths.append(about.frames / about.samplerate)
    return lengths


def sound_library() -> Any:
    """Return soundfile.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # it loads libsndfile
        raise MissingExtra("soundfile", "audio") from error
    return soundfile


def _looked_at(path: str) -> str:
    """Return a digest of a sound's size in bytes, its beginning and its end, once its header and its last sample can be read.

    Raises:
        BadRow: there is no sound that can be read.
    """
    soundfile = sound_library()
    try:
        with opened_file(path) as file:
            start = file.read(_ENDS_BYTES)
            size = file.seek(0, os.SEEK_END)
            if not size:
                raise BadRow("empty sound", "is empty")
            file.seek(max(0, size - _ENDS_BYTES))
            end = file.read()
            if (missing := _missing_bytes(file, size)) > 0:
                raise BadRow(
                    "truncated sound", f"ends in the middle of the sound ({missing:,} bytes are missing)"
                )
        with opened_file(path) as file, soundfile.SoundFile(file) as sound:
            _check(sound)
    except FileNotFoundError as error:
        raise BadRow("missing sound", "is not there") from error
    except OSError as error:
        raise BadRow("unreadable sound", f"cannot be read: {error.strerror or error}") from error
    except soundfile.LibsndfileError as error:
        raise BadRow("unreadable sound", "is no sound that can be read") from error
    return hashlib.sha256(b"%d\0%b\0%b" % (size, start, end)).hexdigest()


def _check(sound: Any) -> None:
    """See that a sound has samples that are numbers, to its end, at a rate that there is.

    Raises:
        BadRow: it has not.
    """
    if not sound.frames:
        raise BadRow("empty sound", "holds no samples")
    if not _LOWEST_RATE <= sound.samplerate <= _HIGHEST_RATE:
        raise BadRow(
            "absurd rate",
            f"has {sound.samplerate:,} samples a second, not {_LOWEST_RATE:,} to {_HIGHEST_RATE:,}",
        )
    if sound.subtype in _FLOATING:
        for block in sound.blocks(blocksize=_BLOCK, dtype="float32"):
            if not np.isfinite(block).all():
                raise BadRow("not a number", "holds samples that are NaN or infinite")
        return
    try:
        sound.seek(sound.frames - 1)
        whole = len(sound.read(1)) == 1
    except sound_library().LibsndfileError:
        whole = False
    if not whole:
        raise BadRow("truncated sound", f"ends before its last sample ({sound.frames:,})")


def _missing_bytes(file: BinaryIO, size: int) -> int:
    """Return how many bytes of samples a WAV file lacks, by its own header; 0 of others: libsndfile reads what is there and says nothing."""
    file.seek(0)
    if file.read(4) != b"RIFF" or file.read(8)[4:] != b"WAVE":
        return 0
    while len(head := file.read(8)) == 8:
        name, length = struct.unpack("<4sI", head)
        if name == b"data":
            return 0 if length in _STREAMED else max(0, file.tell() + length - size)
        file.seek(length + length % 2, os.SEEK_CUR)
    return 0


SOUND_FILES = FileKind(
    noun="sound", plural="sounds", suffixes=SOUND_SUFFIXES, setting="data.audio", digest=_looked_at
)
