"""IA3: Liu et al. 2022, arXiv:2205.05638, section 3.3."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import LEARNING_RATE, Named, Trained, Window, row_losses, weights


def train(
    model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int, start: Named
) -> Trained:
    """Each target's output is `l ⊙ (Wx + b)`; only the vectors `l` move, from 1."""
    frozen = weights(model)
    factors = {
        name.removesuffix(".ia3_l.default"): torch.ones_like(tensor).requires_grad_()
        for name, tensor in start.items()
    }
    losses = []
    for window in windows:
        effective = scaled(frozen, factors)

        def run(effective: Named = effective, **inputs: Any) -> Any:
            return torch.func.functional_call(model, effective, kwargs=inputs)

        summed, counts = row_losses(run, window)  # type: ignore[arg-type]
        loss = torch.stack(summed).sum() / sum(counts)
        gradients = torch.autograd.grad(loss, list(factors.values()), allow_unused=True)
        with torch.no_grad():
            for factor, gradient in zip(factors.values(), gradients, strict=True):
                if gradient is not None:
                    factor -= LEARNING_RATE * gradient
        losses.append(float(loss.detach()))
    found = {name: tensor.detach() for name, tensor in scaled(frozen, factors).items()}
    return Trained(found, found, losses)


def scaled(frozen: Named, factors: Named) -> Named:
    """`l ⊙ (Wx + b) = (l ⊙ W)x + l ⊙ b`, l along the rows."""
    found = dict(frozen)
    for layer, factor in factors.items():
        found[f"{layer}.weight"] = factor * frozen[f"{layer}.weight"]
        found[f"{layer}.bias"] = factor[:, 0] * frozen[f"{layer}.bias"]
    return found
