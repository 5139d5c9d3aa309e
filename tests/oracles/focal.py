"""Focal loss: Lin et al. 2017, arXiv:1708.02002, equation 4."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import IGNORED, Named, Trained, Window, differentiate, forward, plain_sgd, rows


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`FL(p_t) = −(1 − p_t)^γ·log(p_t)`, the mean over all labels that count."""
    assert settings["alpha"] is None

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        losses = []
        for row in rows(window):
            logits = forward(model, row)["logits"][0]
            for place, label in enumerate(row["labels"].reshape(-1).tolist()):
                if label != IGNORED:
                    p = logits[place][label].exp() / sum(logit.exp() for logit in logits[place])
                    losses.append(-((1 - p) ** settings["gamma"]) * p.log())
        return differentiate(model, torch.stack(losses).mean())

    return plain_sgd(model, windows, direction)
