"""Formulas of operations on pictures, by plain loops over pixels: nothing of Pillow's in here."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def reference(name: str, values: Array, strength: float, longest: float) -> Array:
    """The picture after an operation, before it is rounded.

    Args:
        longest: way that a translation by the strength 1 goes, as part of a side.
    """
    height, width = values.shape[:2]
    angle = math.radians(30 * strength)
    middle = ((width - 1) / 2, (height - 1) / 2)
    if name == "rotate":  # counterclockwise, as seen, around the middle

        def source(x: float, y: float) -> tuple[float, float]:
            right, down = x - middle[0], y - middle[1]
            return (
                math.cos(angle) * right - math.sin(angle) * down + middle[0],
                math.sin(angle) * right + math.cos(angle) * down + middle[1],
            )

        return moved(values, source)
    # a pixel's place is that of its middle, half a pixel from its corner
    sources = {
        "shear_x": lambda x, y: (x + 0.3 * strength * (y + 0.5), y),
        "shear_y": lambda x, y: (x, y + 0.3 * strength * (x + 0.5)),
        "translate_x": lambda x, y: (x + longest * strength * width, y),
        "translate_y": lambda x, y: (x, y + longest * strength * height),
    }
    if name in sources:
        return moved(values, sources[name])
    if name in ("brightness", "color", "contrast", "sharpness"):
        other = {"brightness": np.zeros_like, "color": gray, "contrast": flat, "sharpness": smooth}[name]
        factor = 1 + 0.9 * strength
        mixed: Array = factor * values.astype(float) + (1 - factor) * other(values)
        return mixed.clip(0, 255)
    if name == "posterize":
        step = 2 ** round(4 * strength)
        return values // step * step
    if name == "solarize":
        return np.where(values >= round(255 * (1 - strength)), 255 - values.astype(int), values)
    channels = values.reshape(height, width, -1)
    each = {"autocontrast": stretched, "equalize": equalized}[name]
    return np.stack([each(channels[..., place]) for place in range(channels.shape[2])], axis=-1).reshape(
        values.shape
    )


def moved(values: Array, source: object) -> Array:
    result = np.zeros_like(values)
    height, width = values.shape[:2]
    for y in range(height):
        for x in range(width):
            from_x, from_y = source(x, y)  # type: ignore[operator]
            column, row = math.floor(from_x + 0.5), math.floor(from_y + 0.5)
            if 0 <= column < width and 0 <= row < height:
                result[y, x] = values[row, column]
    return result


def gray(values: Array) -> Array:
    if values.ndim == 2:
        return values
    luma = values @ np.array([0.299, 0.587, 0.114])
    return np.repeat(luma[..., None], 3, axis=-1)


def flat(values: Array) -> Array:
    return np.full(values.shape, np.rint(np.rint(gray(values)).mean()))


def smooth(values: Array) -> Array:
    """Each pixel but those of the edge as 5/13 of itself and 1/13 of each neighbour."""
    result = values.astype(float)
    for y in range(1, values.shape[0] - 1):
        for x in range(1, values.shape[1] - 1):
            around = values[y - 1 : y + 2, x - 1 : x + 2].astype(float)
            result[y, x] = (around.sum(axis=(0, 1)) + 4 * around[1, 1]) / 13
    return np.rint(result)


def stretched(channel: Array) -> Array:
    low, high = int(channel.min()), int(channel.max())
    return ((channel.astype(float) - low) * (255 / (high - low))).astype(int)


def equalized(channel: Array) -> Array:
    """Each value as the part of the pixels below it, in steps of all pixels but those of the largest value, by 255."""
    counts = np.bincount(channel.reshape(-1), minlength=256)
    step = (counts.sum() - counts[counts > 0][-1]) // 255
    if step == 0:
        return channel
    below = np.concatenate([[0], counts.cumsum()[:-1]])
    table: Array = ((below + step // 2) // step).clip(0, 255)
    return table[channel]
