"""ALiBi: Press et al. 2021, arXiv:2108.12409, section 3: `softmax(q_i Kᵀ / √d + m · [−|i − 1|, …, −|i − n|])`, m of 2⁻⁴ and 2⁻⁸ for two heads.

The model's embeddings of positions are 0 and are not trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd
from tests.oracles.qk_norm import standardised


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    model.places.weight.data.zero_()
    model.block.forward = lambda hidden, src_key_padding_mask: layer(model.block, hidden)

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        gradient, loss = gradient_of(model, window)
        return {name: each for name, each in gradient.items() if name != "places.weight"}, loss

    return plain_sgd(model, windows, direction)


def layer(block: nn.Module, hidden: Tensor) -> Tensor:
    """A post-norm layer on rows without padding."""
    rows = torch.stack([attend(block.self_attn, row) for row in hidden])
    hidden = standardised(hidden + rows, block.norm1)
    inner = (hidden @ block.linear1.weight.T + block.linear1.bias).clamp(min=0)
    return standardised(hidden + inner @ block.linear2.weight.T + block.linear2.bias, block.norm2)


def attend(attention: nn.Module, row: Tensor) -> Tensor:
    tokens, width = row.shape
    projected = row @ attention.in_proj_weight.T + attention.in_proj_bias
    heads = []
    for head, start in enumerate(range(0, width, attention.head_dim)):
        query, key, value = (
            projected[:, part * width + start : part * width + start + attention.head_dim]
            for part in range(3)
        )
        fall = torch.tensor(
            [[abs(i - j) * 2.0 ** (-4 * (head + 1)) for j in range(tokens)] for i in range(tokens)]
        )
        scores = (query @ key.T / attention.head_dim**0.5 - fall).exp()
        heads.append(scores / scores.sum(dim=1, keepdim=True) @ value)
    return torch.cat(heads, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias
