"""One cycle: Smith & Topin 2018, arXiv:1708.07120, section 3, with the phases of torch's OneCycleLR."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import LEARNING_RATE, Trained, Window, gradient_of, weights

MOMENTUM = 0.9
"""The optimizer's own; the schedule puts another in its place from the first update on."""


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`v ← m_n·v + g` and `w ← w − η·f_n·v`: momentum falls while the rate rises."""
    velocity = {name: torch.zeros_like(weight) for name, weight in model.named_parameters()}
    losses = []
    for updates, window in enumerate(windows):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    velocity[name] = momentum(updates, total, settings) * velocity[name] + gradient[name]
                    weight -= LEARNING_RATE * factor(updates, total, settings) * velocity[name]
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    start = 1 / settings["div_factor"]
    end = start / settings["final_div_factor"]
    if settings["three_phase"]:
        return along([start, 1.0, start, end], updates, total, settings)
    return along([start, 1.0, end], updates, total, settings)


def momentum(updates: int, total: int, settings: dict[str, Any]) -> float:
    low, high = settings["momentum"]
    values = [high, low, high, high] if settings["three_phase"] else [high, low, high]
    return along(values, updates, total, settings)


def along(values: list[float], updates: int, total: int, settings: dict[str, Any]) -> float:
    """The peak is at update `rise·N − 1`, counted from 0, and the end at `N − 1`."""
    peak = settings["rise"] * total - 1
    knees = [0.0, peak, 2 * peak, total - 1] if settings["three_phase"] else [0.0, peak, total - 1]
    phase = 0
    while phase < len(knees) - 2 and updates > knees[phase + 1]:
        phase += 1
    x = (updates - knees[phase]) / (knees[phase + 1] - knees[phase])
    if settings["anneal"] == "cos":
        x = (1 - math.cos(math.pi * x)) / 2
    return values[phase] + (values[phase + 1] - values[phase]) * x
