"""Label smoothing: Szegedy et al. 2016, arXiv:1512.00567, section 7."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import IGNORED, Named, Trained, Window, differentiate, forward, plain_sgd, rows


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """Cross-entropy with `q(k) = (1 − ε)·[k = y] + ε/K`, over all labels that count."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        losses = []
        for row in rows(window):
            logits = forward(model, row)["logits"][0]
            for place, label in enumerate(row["labels"].reshape(-1).tolist()):
                if label != IGNORED:
                    losses.append(smoothed(logits[place], label, settings["epsilon"]))
        return differentiate(model, torch.stack(losses).mean())

    return plain_sgd(model, windows, direction)


def smoothed(logits: Tensor, label: int, epsilon: float) -> Tensor:
    loss = torch.zeros((), dtype=logits.dtype)
    normaliser = sum(logit.exp() for logit in logits)
    for k, logit in enumerate(logits):
        target = (1 - epsilon) * (k == label) + epsilon / len(logits)
        loss = loss - target * (logit.exp() / normaliser).log()
    return loss
