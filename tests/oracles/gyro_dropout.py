"""Gyro dropout: Lee et al. 2022, section 4: of σ masks that are drawn once, τ are taken in each iteration, each by a part of the batch.

The masks are those of the run's seed (0) and of the module's name, those of a window of its number; a mask is of features, the same for all
tokens.
"""

from __future__ import annotations

import hashlib
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.draws import generator_of
from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    numbers = count()
    modules = {f"block.{name}": getattr(model.block, name) for name in ("dropout", "dropout1", "dropout2")}
    width = {"block.dropout": model.block.linear1.out_features}
    masks = {
        name: drawn_masks(name, width.get(name, model.block.linear2.out_features), settings)
        for name in modules
    }

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        rows = len(window["labels"])
        order = torch.randperm(
            settings["subnetworks"], generator=generator_of("gyro_dropout", next(numbers))
        ).tolist()
        of_rows = {
            name: [masks[name][order[row * settings["at_once"] // rows]] for row in range(rows)]
            for name in modules
        }
        for name, module in modules.items():
            turns = iter(of_rows[name])  # an oracle forwards one row after the other
            module.forward = lambda hidden, turns=turns: thinned(hidden, next(turns), settings["rate"])
        return gradient_of(model, window)

    return plain_sgd(model, windows, direction)


def thinned(hidden: Tensor, mask: list[bool], rate: float) -> Tensor:
    columns = [
        hidden[..., place] / (1 - rate) if has else hidden[..., place] * 0 for place, has in enumerate(mask)
    ]
    return torch.stack(columns, dim=-1)


def drawn_masks(name: str, width: int, settings: dict[str, Any]) -> list[list[bool]]:
    text = repr((0, "gyro_dropout", name)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") // 2
    draws = torch.rand(settings["subnetworks"], width, generator=torch.Generator().manual_seed(seed))
    return [[float(draw) >= settings["rate"] for draw in row] for row in draws]
