"""Sounds of eight classes, drawn by a seed and written as WAV files: something to learn from where there is nothing else.

    python examples/draw_sounds.py sounds

Each has its own pitch, strength, length, rate and noise. A rising and a falling sweep have the same frequencies, so that their order in time tells them apart,
and so have a siren and a trill.
"""

from __future__ import annotations

import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Wave = NDArray[np.float64]
COUNT, SEED = 60, 0
RATES = (16_000, 22_050, 44_100)


def tone(drawn: np.random.Generator, times: Wave) -> Wave:
    pitch = drawn.uniform(200, 1500)
    strengths = drawn.uniform(0, 1, 3) / (1, 2, 3)
    return sum(each * np.sin(2 * np.pi * pitch * (k + 1) * times) for k, each in enumerate(strengths))  # type: ignore[no-any-return]


def rising(drawn: np.random.Generator, times: Wave) -> Wave:
    low, high = drawn.uniform(200, 600), drawn.uniform(1200, 3500)
    return np.sin(2 * np.pi * np.cumsum(low * (high / low) ** (times / times[-1])) * times[1])


def falling(drawn: np.random.Generator, times: Wave) -> Wave:
    return rising(drawn, times)[::-1]


def siren(drawn: np.random.Generator, times: Wave) -> Wave:
    pitch, depth, speed = drawn.uniform(500, 1200), drawn.uniform(0.2, 0.4), drawn.uniform(2, 4)
    return np.sin(2 * np.pi * np.cumsum(pitch * (1 + depth * np.sin(2 * np.pi * speed * times))) * times[1])


def trill(drawn: np.random.Generator, times: Wave) -> Wave:
    pitch, depth, speed = drawn.uniform(500, 1200), drawn.uniform(0.2, 0.4), drawn.uniform(8, 14)
    return np.sin(
        2 * np.pi * np.cumsum(pitch * (1 + depth * np.sign(np.sin(2 * np.pi * speed * times)))) * times[1]
    )


def plucked(drawn: np.random.Generator, times: Wave) -> Wave:
    """Return a string of Karplus and Strong: noise that goes round and loses its high frequencies."""
    period = int(1 / (drawn.uniform(150, 700) * times[1]))
    values = np.zeros(len(times))
    values[:period] = drawn.uniform(-1, 1, period)
    for at in range(period, len(times), period):
        before = values[at - period : at]
        part = 0.5 * (before + np.roll(before, 1))[: len(times) - at]
        values[at : at + len(part)] = part
    return values


def hiss(drawn: np.random.Generator, times: Wave) -> Wave:
    width = int(drawn.integers(1, 5))
    return np.convolve(drawn.normal(0, 1, len(times)), np.ones(width) / width, "same")


def clicks(drawn: np.random.Generator, times: Wave) -> Wave:
    every = drawn.uniform(0.04, 0.15)
    return drawn.normal(0, 1, len(times)) * np.exp(-(times % every) * drawn.uniform(80, 200))


KINDS: dict[str, Callable[[np.random.Generator, Wave], Wave]] = {
    each.__name__: each for each in (clicks, falling, hiss, plucked, rising, siren, tone, trill)
}


def draw(kind: str, drawn: np.random.Generator) -> tuple[NDArray[np.int16], int]:
    """Return a sound of 16 bits, shape (samples, channels), and its rate."""
    rate, seconds = int(drawn.choice(RATES)), drawn.uniform(0.6, 1.4)
    times = np.arange(int(rate * seconds)) / rate
    values = KINDS[kind](drawn, times)
    values = values / np.abs(values).max() * np.minimum(1, np.minimum(times, times[-1] - times) * 50)
    values = drawn.uniform(0.1, 0.8) * values + drawn.uniform(0.005, 0.05) * drawn.normal(0, 1, len(times))
    sides = [values] if drawn.random() < 0.7 else [values, values * drawn.uniform(0.2, 1)]
    return (np.stack(sides, axis=1).clip(-1, 1) * 32_767).astype("<i2"), rate


def write(folder: Path, count: int = COUNT, seed: int = SEED) -> None:
    """Write so many sounds of each class, each class in a folder of its own."""
    for number, kind in enumerate(KINDS):
        (folder / kind).mkdir(parents=True)
        for at in range(count):
            values, rate = draw(kind, np.random.default_rng([seed, number, at]))
            with wave.open(str(folder / kind / f"{at:03}.wav"), "wb") as file:
                file.setnchannels(values.shape[1])
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(values.tobytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
