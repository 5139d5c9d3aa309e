"""Embedding norm: Le Scao et al. 2022, arXiv:2211.05100, section 3.2.2: a layer norm right behind the embeddings.

`E'(t) = γ · (E(t) − mean E(t)) / √(var E(t) + ε) + β`, with γ = 1 and β = 0 at the beginning, and ε = 10⁻⁵.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    table = model.tokens
    table.norm = nn.Module()
    table.norm.weight = nn.Parameter(torch.ones_like(table.weight[0]))
    table.norm.bias = nn.Parameter(torch.zeros_like(table.weight[0]))

    def embedded(ids: Tensor) -> Tensor:
        rows = table.weight[ids]
        centred = rows - rows.mean(dim=-1, keepdim=True)
        deviation = ((centred**2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()
        return table.norm.weight * centred / deviation + table.norm.bias

    table.forward = embedded
    return plain_sgd(model, windows, gradient_of)
