"""Layer-wise learning rates: `η·ξ^(depth of the head − depth)`, Howard & Ruder 2018, arXiv:1801.06146, section 3.2."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window
from tests.oracles.pattern_rates import sgd_by_name

EMBEDDINGS = ("tokens.", "places.")
"""The embeddings of the model that is trained here; nothing of it is numbered, so all else is the head."""


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    def factor(updates: int, name: str) -> float:
        return float(settings["decay"] if name.startswith(EMBEDDINGS) else 1.0)

    return sgd_by_name(model, windows, factor)
