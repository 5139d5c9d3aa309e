"""z-loss: Chowdhery et al. 2022, arXiv:2204.02311, section 5: `10⁻⁴ · log² Z` is added to the loss of each token."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import (
    IGNORED,
    Named,
    Trained,
    Window,
    cross_entropy,
    differentiate,
    forward,
    plain_sgd,
    rows,
)


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`−log p(y) + c · (log Σ_j e^{z_j})²`, averaged over all labels that count."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        losses = []
        for row in rows(window):
            logits = forward(model, row)["logits"][0]
            for place, label in enumerate(row["labels"].reshape(-1).tolist()):
                if label != IGNORED:
                    normaliser = sum(logit.exp() for logit in logits[place])
                    losses.append(
                        cross_entropy(logits[place], label) + settings["coefficient"] * normaliser.log() ** 2
                    )
        return differentiate(model, torch.stack(losses).mean())

    return plain_sgd(model, windows, direction)
