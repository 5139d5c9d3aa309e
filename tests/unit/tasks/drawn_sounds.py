"""Sounds that are drawn for tests: tones of two pitches in noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile

RATE = 8_000
PITCHES = {"high": 2000.0, "low": 300.0}


def write_tones(folder: Path, count: int = 12, seconds: float = 0.3, seed: int = 0) -> None:
    """Write so many tones of each pitch, each pitch in a folder of its own; every third has two channels and another rate."""
    drawn = np.random.default_rng(seed)
    for name, pitch in PITCHES.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            rate = RATE if number % 3 else 2 * RATE
            times = np.arange(int(seconds * rate * drawn.uniform(0.8, 1.2))) / rate
            values = 0.4 * np.sin(2 * np.pi * pitch * drawn.uniform(0.9, 1.1) * times)
            values = values + 0.02 * drawn.normal(size=len(times))
            sides = values if number % 3 else np.stack([values, values / 2], axis=1)
            soundfile.write(folder / f"{name}/{number:02}.wav", sides, rate)
