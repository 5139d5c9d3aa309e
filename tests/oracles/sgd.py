"""SGD with momentum: Sutskever et al. 2013, in torch's form; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`g ← g + λw`, `b ← μb + g` (`b ← g` at first), `w ← w − η·b`, or with Nesterov `w ← w − η(g + μb)`."""
    velocity: dict[str, torch.Tensor] = {}
    losses = []
    for window in windows:
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                if weight.ndim > 1:
                    g = g + settings["weight_decay"] * weight
                velocity[name] = settings["momentum"] * velocity[name] + g if name in velocity else g.clone()
                step = g + settings["momentum"] * velocity[name] if settings["nesterov"] else velocity[name]
                weight -= settings["learning_rate"] * step
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
