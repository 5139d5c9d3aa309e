"""QK norm: queries and keys are normalised for each head, so that attention cannot saturate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_modules

QUERIES_AND_KEYS = (
    "query",
    "key",
    "q_proj",
    "k_proj",
    "q_lin",
    "k_lin",
    "to_q",
    "to_k",
    "wq",
    "wk",
    "q",
    "k",
)
"""Names of the projections of models that keep them apart."""

FUSED = ("c_attn", "qkv", "qkv_proj", "query_key_value", "Wqkv", "in_proj")
"""Names of projections that give queries, keys and values at once, each model in an order of its own."""


def rms_normalised(heads: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    """Heads (..., head_dim) divided by their root mean square, times the scale (head_dim,); computed in float32 at least.

    >>> rms_normalised(torch.tensor([[3.0, 4.0]]), torch.ones(2))
    tensor([[0.8485, 1.1314]])
    """
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    return (wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * scale).to(heads.dtype)


class HeadNorm(nn.Module):
    """The learned scale of the heads of one projection, from 1."""

    def __init__(self, head_dim: int, like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim, dtype=like.dtype, device=like.device))

    def forward(self, projected: Tensor) -> Tensor:
        """Normalise the last dimension in parts of one head."""
        heads = projected.unflatten(-1, (-1, self.weight.shape[0]))
        return rms_normalised(heads, self.weight).flatten(-2)


class NormedMultiheadAttention(nn.MultiheadAttention):
    """Torch's attention with a norm of its queries and keys; keeps the parameters of the one it is made of."""

    query_norm: HeadNorm
    key_norm: HeadNorm

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute as torch's does, for inputs (rows, tokens, width), (tokens, rows, width) without `batch_first`, or (tokens, width).

        Raises:
            SettingError: `is_causal` without a mask; torch takes it for a hint about the mask.
        """
        if is_causal and attn_mask is None:
            raise SettingError(
                "qk_norm",
                "an nn.MultiheadAttention is called with is_causal=True and no mask, of which it is a hint",
                "Give attn_mask.",
            )
        if query.ndim == 2:
            place = 0 if self.batch_first else 1
            query, key, value = (tensor.unsqueeze(place) for tensor in (query, key, value))
            padding = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
            outputs, shares = self(
                query, key, value, padding, need_weights, attn_mask, average_attn_weights, is_causal
            )
            return outputs.squeeze(place), None if shares is None else shares.squeeze(0)
        if not self.batch_first:
            query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        weights = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        queries, keys, values = (
            F.linear(tensor, weight, bias)
            for tensor, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        queries, keys, values = (
            tensor.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for tensor in (self.query_norm(queries), self.key_norm(keys), values)
        )
        mask = _additive(attn_mask, key_padding_mask, self.num_heads, queries)
        dropout = self.dropout if self.training else 0.0
        shares = None
        if need_weights:
            scores = queries @ keys.transpose(-2, -1) / self.head_dim**0.5
            shares = (scores if mask is None else scores + mask).softmax(dim=-1)
            mixed = F.dropout(shares, dropout) @ values
            shares = shares.mean(dim=1) if average_attn_weights else shares
        else:
            mixed = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        outputs = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        return outputs if self.batch_first else outputs.transpose(0, 1), shares


@dataclass(frozen=True)
class QKNorm(Technique):
    """Normalise queries and keys for each head by their root mean square, with a learned scale for each dimension."""

    projections: tuple[str, ...] = ()
    head_dim: int | None = None

    card: ClassVar[Card] = Card(
        name="qk_norm",
        summary="Normalises queries and keys for each head, so that attention stays stable at high learning rates.",
        family=Family.LEARNING,
        source="Henry et al. 2020, arXiv:2010.04245; Dehghani et al. 2023, arXiv:2302.05442",
        seams=(),
        stages=(Stage.EXTEND,),
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "what an adapter adds to a query or key would stand behind its norm, and could not be merged. Remove one.",
        ),
        cost="two norms of the width of a layer; two vectors of a head's width a layer",
        use_when="transformers trained from scratch; not for pretrained weights, whose attention it changes",
    )

    def __post_init__(self) -> None:
        self.require("head_dim", self.head_dim is None or self.head_dim >= 1, "at least 1")

    def prepare(self, model: nn.Module) -> nn.Module:
        projections = list(_projections(model, self.projections))
        torch_attentions = [module for module in model.modules() if type(module) is nn.MultiheadAttention] * (
            not self.projections
        )
        if not projections and not torch_attentions:
            raise _none_known(model)
        for name, parent, projection in projections:
            size = self._head_dim(name, parent, projection)
            projection.head_norm = HeadNorm(size, projection.weight)
            projection.register_forward_hook(_normalise)
        for attention in torch_attentions:
            _norm_torch_attention(attention)
        for module in model.modules():
            if torch_attentions and isinstance(module, nn.TransformerEncoder):
                module.use_nested_tensor = False  # part of the fast path
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()

    def _head_dim(self, name: str, parent: nn.Module, projection: nn.Linear) -> int:
        known = (
            self.head_dim,
            *(getattr(parent, name, None) for name in ("head_dim", "attention_head_size")),
        )
        size = next((size for size in known if isinstance(size, int)), None)
        if size is None or projection.out_features % size:
            raise SettingError(
                "qk_norm.head_dim",
                f"the width of a head of '{name}' ({projection.out_features} outputs) is not known, or does not divide "
                f"them (found {size})",
                "Give qk_norm.head_dim.",
            )
        return size


def _normalise(projection: nn.Module, _inputs: Any, outputs: Tensor) -> Tensor:
    normed: Tensor = projection.head_norm(outputs)  # type: ignore[operator]
    return normed


def _projections(model: nn.Module, patterns: Sequence[str]) -> Iterator[tuple[str, nn.Module, nn.Linear]]:
    wanted = find_modules(model, patterns, "qk_norm.projections", nn.Linear)
    for name, module in model.named_modules():
        parent, _, last = name.rpartition(".")
        if isinstance(module, nn.Linear) and (name in wanted if patterns else last in QUERIES_AND_KEYS):
            yield name, model.get_submodule(parent), module


def _none_known(model: nn.Module) -> SettingError:
    fused = next((name for name, _ in model.named_modules() if name.rpartition(".")[2] in FUSED), None)
    if fused is not None:
        return SettingError(
            "qk_norm.projections",
            f"'{fused}' gives queries, keys and values at once, in an order that only its model knows, so there is nothing to "
            "norm",
            "Use a model with separate projections, or its own option for QK norm.",
        )
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return SettingError(
        "qk_norm.projections",
        "the model has no attention that is known",
        "Give patterns that name the projections of queries and of keys among its linear layers: "
        f"{', '.join(linear[:8]) or 'it has none'}{', …' if len(linear) > 8 else ''}.",
    )


def _norm_torch_attention(attention: nn.MultiheadAttention) -> None:
    if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
        raise SettingError(
            "qk_norm",
            "an nn.MultiheadAttention with kdim, vdim, add_bias_kv or add_zero_attn is not supported",
            "Remove one of the two.",
        )
    attention.__class__ = NormedMultiheadAttention
    attention._qkv_same_embed_dim = False  # torch's fast path of evaluation would pass the norms by
    attention.query_norm = HeadNorm(attention.head_dim, attention.in_proj_weight)
    attention.key_norm = HeadNorm(attention.head_dim, attention.in_proj_weight)


def _additive(mask: Tensor | None, padding: Tensor | None, num_heads: int, like: Tensor) -> Tensor | None:
    """Return both masks of torch's attention as one that is added to the scores (rows, heads, queries, keys)."""
    parts = []
    if mask is not None:
        parts.append(mask.unflatten(0, (-1, num_heads)) if mask.ndim == 3 else mask)
    if padding is not None:
        parts.append(padding[:, None, None, :])
    added = [
        torch.zeros_like(part, dtype=like.dtype).masked_fill(part, float("-inf"))
        if part.dtype == torch.bool
        else part.to(like.dtype)
        for part in parts
    ]
    return sum(added[1:], added[0]) if added else None
