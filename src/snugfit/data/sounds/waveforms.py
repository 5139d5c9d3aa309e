"""Waveforms: the part of a sound that a model hears, decoded, of one channel, at the model's rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from snugfit.data.files.tar_members import file_of
from snugfit.data.sounds.sound_files import sound_library
from snugfit.errors import MissingExtra

if TYPE_CHECKING:
    from numpy.typing import NDArray


def waveform(source: Any, rate: int, samples: int, *, drawn: bool = False) -> NDArray[np.float32]:
    """Return a sound of one channel, the mean of those that it has, at `rate` samples a second, at most `samples` long.

    No more of a file is read than that: its beginning, or a part that is drawn from torch's global generator. What is cut out is resampled
    by a polyphase filter (scipy's `resample_poly`).

    Args:
        source: a path, or a mapping with `array` (samples, or samples and channels) and `sampling_rate`, as data sets of Hugging Face hold sounds.
    Raises:
        ValueError: it ends before it should, or holds what is no number.
    """
    return heard_part(source, rate, samples, drawn=drawn)[0]


def heard_part(source: Any, rate: int, samples: int, *, drawn: bool) -> tuple[NDArray[np.float32], int]:
    """Return the same, and how many frames of the sound are not heard."""
    if isinstance(source, Mapping):
        own, whole = int(source["sampling_rate"]), np.asarray(source["array"], dtype=np.float32)
        frames, count = len(whole), _heard(len(whole), own, rate, samples)
        start = draw_start(frames - count) if drawn else 0
        values = whole[start : start + count].reshape(count, -1)
    else:
        with file_of(source) as file, sound_library().SoundFile(file) as sound:
            own, frames = int(sound.samplerate), sound.frames
            count = _heard(frames, own, rate, samples)
            start = draw_start(frames - count) if drawn else 0
            sound.seek(start)
            values = sound.read(count, dtype="float32", always_2d=True)
        if len(values) < count:
            raise ValueError(f"it ends in the middle of the sound, after {start + len(values):,} samples")
    if not np.isfinite(values).all():
        raise ValueError("it holds samples that are NaN or infinite")
    wave = values.mean(axis=1)
    if own != rate:
        divisor = math.gcd(own, rate)
        wave = resampler()(wave, rate // divisor, own // divisor)
    return np.ascontiguousarray(wave[:samples], dtype=np.float32), frames - count


def draw_start(not_heard: int) -> int:
    """Return where to begin to read a sound of which so many frames are not heard, drawn from torch's global generator."""
    return int(torch.randint(not_heard + 1, ()))


def resampler() -> Any:
    """Return scipy's `resample_poly`.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise MissingExtra("scipy", "audio") from error
    return resample_poly


def _heard(frames: int, own: int, rate: int, samples: int) -> int:
    """Return how many frames are heard, at the sound's own rate."""
    return min(frames, -(-samples * own // rate))
