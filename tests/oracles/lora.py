"""LoRA: Hu et al. 2021, arXiv:2106.09685, equation 3; DoRA: arXiv:2402.09353, equation 5; rsLoRA: arXiv:2312.03732;
LoRA+: arXiv:2402.12354."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import LEARNING_RATE, Named, Trained, Window, row_losses, weights


def train(
    model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int, start: Named
) -> Trained:
    """`W = W₀ + s·BA` with `s = α/r` (rsLoRA: `α/√r`); only A and B (DoRA: and m) move, B with the rate `λη` of LoRA+."""
    rank = settings["rank"]
    scale = settings["alpha"] / (math.sqrt(rank) if settings["rslora"] else rank)
    frozen = weights(model)
    adapters = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.items()}
    losses = []
    for window in windows:
        effective = all_effective(frozen, adapters, scale)
        summed, counts = row_losses(running_with(model, effective), window)  # type: ignore[arg-type]
        loss = torch.stack(summed).sum() / sum(counts)
        gradients = torch.autograd.grad(loss, list(adapters.values()), allow_unused=True)
        with torch.no_grad():
            for (name, tensor), gradient in zip(adapters.items(), gradients, strict=True):
                faster = settings["plus"] if ".lora_B." in name else 1.0
                if gradient is not None:
                    tensor -= LEARNING_RATE * faster * gradient
        losses.append(float(loss.detach()))
    found = {name: tensor.detach() for name, tensor in all_effective(frozen, adapters, scale).items()}
    return Trained(found, found, losses)


def all_effective(frozen: Named, adapters: Named, scale: float) -> Named:
    found = dict(frozen)
    for layer in sorted({name.partition(".lora_")[0] for name in adapters}):
        a, b = (adapters[f"{layer}.lora_{letter}.default.weight"] for letter in "AB")
        length = adapters.get(f"{layer}.lora_magnitude_vector.default.weight")
        found[f"{layer}.weight"] = effective(frozen[f"{layer}.weight"], a, b, scale, length)
    return found


def effective(weight: Tensor, a: Tensor, b: Tensor, scale: float, length: Tensor | None) -> Tensor:
    """`W₀ + s·BA`; with lengths `m·V/‖V‖` for each row V of it, the norm taken as a constant (DoRA, section 4.3)."""
    moved = weight + scale * (b @ a)
    if length is None:
        return moved
    return length[:, None] * moved / moved.detach().square().sum(dim=1).sqrt()[:, None]


def running_with(model: nn.Module, effective: Named) -> Any:
    """The model as a function under these weights."""
    return lambda **inputs: torch.func.functional_call(model, effective, kwargs=inputs)
