"""tf32 is a switch of CUDA devices: on a CPU, as here, the loop is the plain one.

That the switch is set around forward and backward, and only there, is in the unit tests; the rounding is the hardware's.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

NOT_HERE = ("required",)  # needs CUDA
COMPUTES_ELSEWHERE = True


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
