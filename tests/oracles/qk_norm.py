"""QK norm: Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442, section 2, equation of attention.

`softmax(norm(Q) norm(K)ᵀ / √d) V`, with `norm(x) = g · x / √(mean(x²) + ε)` for each head, and ε = 10⁻⁶. The layer of the
model is computed by hand, head by head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

ADDS_PARTS_OF_WIDTH = 2  # a scale for each dimension of a head, of which the model has two


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`g` starts at 1 and is learned with the rest."""
    attention = model.block.self_attn
    for norm in ("query_norm", "key_norm"):
        scale = nn.Module()
        scale.weight = nn.Parameter(torch.ones(attention.head_dim, dtype=attention.in_proj_weight.dtype))
        setattr(attention, norm, scale)
    model.block.forward = lambda hidden, src_key_padding_mask: layer(model.block, hidden)
    return plain_sgd(model, windows, gradient_of)


def layer(block: nn.Module, hidden: Tensor) -> Tensor:
    """A post-norm layer on rows without padding."""
    rows = torch.stack([attend(block.self_attn, row) for row in hidden])
    hidden = standardised(hidden + rows, block.norm1)
    inner = (hidden @ block.linear1.weight.T + block.linear1.bias).clamp(min=0)
    return standardised(hidden + inner @ block.linear2.weight.T + block.linear2.bias, block.norm2)


def attend(attention: nn.Module, row: Tensor) -> Tensor:
    width, size = row.shape[1], attention.head_dim
    projected = row @ attention.in_proj_weight.T + attention.in_proj_bias
    heads = []
    for start in range(0, width, size):
        query = rooted(projected[:, start : start + size], attention.query_norm.weight)
        key = rooted(projected[:, width + start : width + start + size], attention.key_norm.weight)
        value = projected[:, 2 * width + start : 2 * width + start + size]
        scores = (query @ key.T / size**0.5).exp()
        heads.append(scores / scores.sum(dim=1, keepdim=True) @ value)
    return torch.cat(heads, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias


def rooted(heads: Tensor, scale: Tensor) -> Tensor:
    return scale * heads / ((heads**2).mean(dim=1, keepdim=True) + 1e-6).sqrt()


def standardised(hidden: Tensor, norm: nn.Module) -> Tensor:
    centred = hidden - hidden.mean(dim=-1, keepdim=True)
    return norm.weight * centred / ((centred**2).mean(dim=-1, keepdim=True) + norm.eps).sqrt() + norm.bias
