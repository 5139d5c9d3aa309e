"""Attention of packed rows by a kernel that is told where each example begins: it never looks at other examples or at what is left of a row.

The kernel is FlashAttention-2 as torch brings it (`torch.nn.attention.varlen`), for 16 bits on CUDA from Ampere on. Its time is that of the
examples, where a kernel with a mask computes all pairs of tokens of a row. Wherever it cannot be had, attention is computed with the mask.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from snugfit.kit.language_models.attention_function import Attend, attention_has_other_scores, replaced_sdpa

SPANS = "packed_spans"
"""The keyword by which transformers' models hand the spans down to attention, also where a block is computed again in backward."""

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Spans:
    """The places of the examples in packed rows that are laid end to end; what is left of a row is an example of its own.

    `offsets` has the beginning of each and the end of the last, in int32; `longest` is the length of the longest one; `shape` is that of
    the rows and their tokens.
    """

    offsets: Tensor
    longest: int
    shape: tuple[int, int]
    causal: bool


def is_there(device: torch.device) -> bool:
    """Return whether the device has the kernel, and nobody has switched it off."""
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch._C._get_flash_sdp_enabled()
        and (8, 0) <= torch.cuda.get_device_capability(device) <= (12, 1)
    )


def by_example() -> AbstractContextManager[None]:
    """Temporarily let transformers' `sdpa` compute attention by the spans that it is given.

    It is to last until backward has ended: a block that is computed again there has to attend as it did.
    """
    return replaced_sdpa(_attend)


def _attend(
    with_mask: Attend,
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the outputs of attention, shape (rows, tokens, heads, dim), for queries of shape (rows, heads, tokens, dim)."""
    spans: Spans | None = more.pop(SPANS, None)
    queries, keys, values = (_as_computed(tensor) for tensor in (query, key, value))
    other_scores = attention_has_other_scores(more)
    # a block that is computed some rows at a time has the mask of those rows, and the spans of all
    whole = spans is not None and spans.shape == (query.shape[0], query.shape[2])
    if spans is None or not whole or dropout > 0 or other_scores or not _takes(queries, keys, values):
        return with_mask(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more)
    return _kernel(queries, keys, values, spans, scaling), None


def _as_computed(tensor: Tensor) -> Tensor:
    """Return the tensor in the type that autocast, if it is on, computes attention in."""
    device = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else tensor


def _takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernel computes such tensors forward and backward."""
    dim = query.shape[-1]
    return (
        is_there(query.device)
        and query.dtype in _HALF
        and query.dtype == key.dtype == value.dtype
        and query.shape[-2] == key.shape[-2] == value.shape[-2]
        and key.shape[-1] == value.shape[-1] == dim <= 192  # above, some devices have no backward
        and dim % 8 == 0
        and query.shape[1] % key.shape[1] == 0
    )


def _kernel(query: Tensor, key: Tensor, value: Tensor, spans: Spans, scaling: float | None) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, tokens, _ = query.shape
    offsets, longest = spans.offsets, spans.longest
    options: dict[str, Any] = {"scale": scaling, "window_size": (-1, 0) if spans.causal else (-1, -1)}
    # torch 2.11 has no such option, and takes fewer heads of keys without it
    if key.shape[1] != heads and "enable_gqa" in _parameters(varlen_attn):
        options["enable_gqa"] = True
    query, key, value = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    outputs: Any = varlen_attn(query, key, value, offsets, offsets, longest, longest, **options)
    by_row: Tensor = outputs.unflatten(0, (rows, tokens))
    return by_row


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)
