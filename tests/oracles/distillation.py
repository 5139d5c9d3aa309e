"""Distillation (Hinton et al. 2015, arXiv:1503.02531, section 2) from the model as it was at the start."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

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
    """`(1 − s)·CE(y, p) + s·T²·Σ_j q_j log(q_j / p_j)` with `p, q ∝ e^{z/T}`, averaged over all labels that count."""
    assert settings["teacher"] == "start"
    teacher = copy.deepcopy(model).eval()
    share, temperature = settings["share"], settings["temperature"]

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        losses = []
        for row in rows(window):
            student, taught = logits(model, row), logits(teacher, row).detach()
            for place, label in enumerate(row["labels"].reshape(-1).tolist()):
                if label != IGNORED:
                    own, other = softened(student[place], temperature), softened(taught[place], temperature)
                    divergence = sum(q * (q / p).log() for p, q in zip(own, other, strict=True))
                    losses.append(
                        (1 - share) * cross_entropy(student[place], label)
                        + share * temperature**2 * divergence
                    )
        return differentiate(model, torch.stack(losses).mean())

    return plain_sgd(model, windows, direction)


def logits(model: nn.Module, row: Window) -> Tensor:
    outputs = forward(model, row)
    found = (outputs if isinstance(outputs, Tensor) else outputs["logits"])[0]
    return found.reshape(-1, found.shape[-1])


def softened(logits: Tensor, temperature: float) -> Tensor:
    powers = (logits / temperature).exp()
    return powers / powers.sum()
