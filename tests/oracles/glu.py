"""Gated linear units: Shazeer 2020, arXiv:2002.05202, equation 6: `(act(x W + b) ⊗ (x V + c)) W₂ + b₂`.

The model's first layer has `W` and `b` above `V` and `c`, whose first values are given.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd
from tests.oracles.qk_norm import standardised


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    block, width = model.block, model.block.linear1.out_features
    wide = gates(block.linear1.weight)
    block.linear1.weight = nn.Parameter(torch.cat([block.linear1.weight.detach(), wide]))
    block.linear1.bias = nn.Parameter(torch.cat([block.linear1.bias.detach(), torch.zeros_like(wide[:, 0])]))

    def forward(hidden: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        mixed, _ = block.self_attn(hidden, hidden, hidden, need_weights=False)
        hidden = standardised(hidden + mixed, block.norm1)
        weight, bias = block.linear1.weight, block.linear1.bias
        values = hidden @ weight[:width].T + bias[:width]
        gated = values.clamp(min=0) * (hidden @ weight[width:].T + bias[width:])
        return standardised(hidden + gated @ block.linear2.weight.T + block.linear2.bias, block.norm2)

    block.forward = forward
    return plain_sgd(model, windows, gradient_of)


def gates(weight: Tensor) -> Tensor:
    """As wide as the weight is spread, by the run's seed (0)."""
    text = repr((0, "prepare", "glu")).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") // 2
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drawn = torch.randn(weight.shape, dtype=weight.dtype)
    values = weight.detach().flatten()
    mean = values.sum() / len(values)
    return drawn * (((values - mean) ** 2).sum() / (len(values) - 1)).sqrt()
