"""ALiBi: attention to a token falls with its distance, in place of embeddings of positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.module_patterns import find_module

POSITIONS = ("wpe", "position_embeddings", "position_embedding", "embed_positions")
"""Names of embeddings of positions in models that have known attention."""

STOCK_ATTENTION = ("GPT2Attention", "BertSelfAttention", "RobertaSelfAttention")
"""Classes of transformers that take a mask which is added to their scores, and attend to their own tokens."""

KERNELS = ("eager", "sdpa")
"""Implementations of attention in transformers that add such a mask."""

_ARGUMENTS = (
    "query",
    "key",
    "value",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)


def slopes(heads: int, device: torch.device | None = None) -> Tensor:
    """Return by how much the scores of each head fall with a token of distance: a geometric series, float32, shape (heads,).

    Of a number that is no power of two: those of the next lower power, then every other one of the next higher power.

    >>> slopes(4), slopes(3)
    (tensor([0.2500, 0.0625, 0.0156, 0.0039]), tensor([0.0625, 0.0039, 0.2500]))
    """
    power = 1 << (heads.bit_length() - 1)
    own = torch.exp2(-8 / power * torch.arange(1, power + 1, device=device))
    further = torch.exp2(-8 / (2 * power) * (2 * torch.arange(heads - power, device=device) + 1))
    return torch.cat([own, further])


def distance_bias(heads: int, queries: Tensor, keys: Tensor) -> Tensor:
    """Return what is added to the scores of queries and keys at these positions: float32, shape (heads, queries, keys)."""
    distance = (queries.unsqueeze(1) - keys).abs()
    return -slopes(heads, queries.device)[:, None, None] * distance


@dataclass(frozen=True)
class ALiBi(Technique):
    """Take the embeddings of positions away, and let attention fall linearly with distance, at another rate for each head."""

    positions: str | None = None

    card: ClassVar[Card] = Card(
        name="alibi",
        summary="Lets attention fall with distance in place of embeddings of positions, so that longer texts can be read.",
        aliases=("attention with linear biases",),
        family=Family.LEARNING,
        source="Press et al. 2021, arXiv:2108.12409",
        seams=(),
        stages=(Stage.LAYER,),
        kind=Kind.TOKENS,
        conflicts={
            "packing": "texts in one row would be told apart by a mask of its own, in place of the bias. Remove one."
        },
        cost="a bias of heads * tokens**2 numbers in each layer, so that attention without masks is slower",
        use_when="GPT-2 or BERT from scratch, on short texts, to read longer ones; pretrained positions would be lost",
    )

    @classmethod
    def example(cls) -> Self:
        return cls(positions="p*s")

    def prepare(self, model: nn.Module) -> nn.Module:
        attentions = [module for module in model.modules() if _is_known(module)]
        if not attentions:
            raise SettingError(
                "alibi",
                f"has nothing to change: the model has no attention that is known, {', '.join(STOCK_ATTENTION)} or "
                "nn.MultiheadAttention",
                "Remove it.",
            )
        embedding = self._positions(model)
        with torch.no_grad():
            embedding.weight.zero_()
        embedding.weight.requires_grad_(False)
        for attention in attentions:
            if isinstance(attention, nn.MultiheadAttention):
                attention.register_forward_pre_hook(_biased, with_kwargs=True)
            else:
                attention.register_forward_pre_hook(_stock_biased, with_kwargs=True)
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()

    def _positions(self, model: nn.Module) -> nn.Embedding:
        if self.positions is not None:
            named = find_module(model, self.positions, "alibi.positions", nn.Embedding)
            assert isinstance(named, nn.Embedding)
            return named
        tables = {name: each for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
        known = [each for name, each in tables.items() if name.rpartition(".")[2] in POSITIONS]
        if len(known) != 1:
            raise SettingError(
                "alibi.positions",
                f"the model has {len(known)} embeddings of positions by name ({', '.join(POSITIONS)}), and one is to be taken away",
                f"Name it; the embeddings are: {', '.join(tables) or 'none'}. Models that turn queries and keys by their position "
                "(rotary) have none.",
            )
        return known[0]


def _is_known(module: nn.Module) -> bool:
    if isinstance(module, nn.MultiheadAttention):
        return True
    return type(module).__name__ in STOCK_ATTENTION and not getattr(module, "is_cross_attention", False)


def _stock_biased(
    attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Add the bias to the mask of one of transformers' attentions, or make one of it."""
    kernel = attention.config._attn_implementation
    if kernel not in KERNELS:
        raise SettingError(
            "alibi",
            f"adds a bias to the scores of attention, which the kernel '{kernel}' does not take",
            "Add attention_kernel: {kernel: sdpa}.",
        )
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    mask: Tensor | None = kwargs.get("attention_mask")
    cache = kwargs.get("past_key_values")
    before = 0 if cache is None else cache.get_seq_length(attention.layer_idx)
    count = before + hidden.shape[1] if mask is None else mask.shape[-1]
    queries = before + torch.arange(hidden.shape[1], device=hidden.device)
    keys = torch.arange(count, device=hidden.device)
    heads = getattr(attention, "num_heads", None) or attention.num_attention_heads
    bias = distance_bias(heads, queries, keys).to(hidden.dtype).unsqueeze(0)
    lowest = torch.finfo(hidden.dtype).min
    if mask is None:
        if attention.is_causal:
            bias = bias.masked_fill(keys > queries.unsqueeze(1), lowest)
    elif mask.dtype == torch.bool:
        bias = torch.where(mask, bias, lowest)
    else:
        bias = (bias + mask).clamp(min=lowest)
    return args, {**kwargs, "attention_mask": bias}


def _biased(
    attention: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """Add the bias to the mask of torch's attention, where tokens attend to each other: query and key are one tensor."""
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    query, mask, padding = given["query"], given.get("attn_mask"), given.get("key_padding_mask")
    if query is not given["key"]:
        return (), given
    if given.get("is_causal") and mask is None:
        raise SettingError(
            "alibi",
            "an nn.MultiheadAttention is called with is_causal=True and no mask, of which it is a hint",
            "Give attn_mask.",
        )
    alone = query.ndim == 2
    tokens = query.shape[1 if attention.batch_first and not alone else 0]
    rows = 1 if alone else query.shape[0 if attention.batch_first else 1]
    places = torch.arange(tokens, device=query.device)
    bias = distance_bias(attention.num_heads, places, places).to(query.dtype)
    if mask is not None:
        added = _added(mask, query.dtype)
        bias = bias + (added.unflatten(0, (-1, attention.num_heads)) if mask.ndim == 3 else added)
    given["attn_mask"] = bias.expand(rows, attention.num_heads, tokens, tokens).flatten(0, 1)
    given["is_causal"] = False
    if padding is not None:
        given["key_padding_mask"] = _added(padding, query.dtype)
    return (), given


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of torch's attention, in which True hides, as one that is added."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
