"""Progressive freezing: Brock et al. 2017, arXiv:1706.04983, section 2, with the linear schedule of composer's LayerFreezing.

`⌊most · (t − start) / (1 − start) · (L − 1)⌋` of L layers are frozen after the part t of the run, from the inputs up.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd

# the children of the model from the inputs up; the token embeddings are the head's, which is never frozen
ORDER = ["places.", "mix.", "block.", "unused.", "head."]


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    start, most = (Fraction(str(settings[name])) for name in ("start", "most"))
    done = 0

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        nonlocal done
        part = most * (Fraction(done, total) - start) / (1 - start)
        frozen = tuple(ORDER[: max(0, math.floor(part * (len(ORDER) - 1)))])
        gradient, loss = gradient_of(model, window)
        done += 1
        return {name: g for name, g in gradient.items() if not name.startswith(frozen)}, loss

    return plain_sgd(model, windows, direction)
