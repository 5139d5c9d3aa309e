"""Class weights: the mean of the losses, weighted by the label's class."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import IGNORED, Named, Trained, Window, differentiate, forward, plain_sgd, rows


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`Σ w_y·CE / Σ w_y` over all labels that count."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        losses, weights = [], []
        for row in rows(window):
            logits = forward(model, row)["logits"][0]
            for place, label in enumerate(row["labels"].reshape(-1).tolist()):
                if label != IGNORED:
                    weight = settings["weights"][label]
                    normaliser = sum(logit.exp() for logit in logits[place])
                    losses.append(-weight * (logits[place][label].exp() / normaliser).log())
                    weights.append(weight)
        return differentiate(model, torch.stack(losses).sum() / sum(weights))

    return plain_sgd(model, windows, direction)
