"""The kernel of attention that torch would pick on a CUDA device of a given capability.

Torch asks the device when `scaled_dot_product_attention` runs. Here its rules stand as they are for dense tensors in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp up to torch 2.13, for devices of NVIDIA. After 2.13 the memory-efficient
kernel takes fewer heads of keys, too (pytorch pull request 191085).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

_DEFAULT_ORDER = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
)
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Attention:
    """A call of `scaled_dot_product_attention` on a device: what its kernel is picked by.

    `query` is of shape (batch, heads, tokens, dim), `key` and `value` have tokens of their own, and fewer heads where `grouped`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    grouped: bool
    capability: tuple[int, int]

    def kernel(self) -> SDPBackend:
        """Return the first kernel in torch's order that can run this; `SDPBackend.ERROR` where none may.

        >>> query = torch.empty(1, 2, 16, 64, dtype=torch.float16)
        >>> [Attention(query, query, query, None, 0.0, True, False, capability).kernel().name for capability in ((7, 5), (8, 0))]
        ['EFFICIENT_ATTENTION', 'FLASH_ATTENTION']
        """
        usable = {
            SDPBackend.FLASH_ATTENTION: self.flash,
            SDPBackend.EFFICIENT_ATTENTION: self.efficient,
            SDPBackend.CUDNN_ATTENTION: self.cudnn,
            SDPBackend.MATH: torch._C._get_math_sdp_enabled,
        }
        for backend in _order(self.capability):
            if backend in usable and usable[backend]():
                return backend
        return SDPBackend.ERROR

    def flash(self) -> bool:
        """Return whether FlashAttention-2 can run this."""
        dim = self.query.shape[-1]
        return (
            torch._C._get_flash_sdp_enabled()
            and self.mask is None
            and self.key.shape[-1] == self.value.shape[-1] == dim <= 256
            and (8, 0) <= self.capability <= (12, 1)
            and not (self._trains and self._lacks_backward(dim))
            and (not self.is_causal or self.query.shape[-2] == self.key.shape[-2])
            and self._is_dense(_HALF, grouped=True)
        )

    def efficient(self) -> bool:
        """Return whether the memory-efficient kernel can run this; it takes a mask."""
        dim, value_dim = self.query.shape[-1], self.value.shape[-1]
        alignment = self._alignment()
        types = (torch.float16, torch.float32, *((torch.bfloat16,) if self.capability >= (8, 0) else ()))
        return (
            torch._C._get_mem_efficient_sdp_enabled()
            and (5, 0) <= self.capability <= (12, 1)
            and self.key.shape[-1] == dim
            and dim > 0 < value_dim
            and dim % alignment == value_dim % alignment == 0
            and self._is_dense(types, grouped=False)
        )

    def cudnn(self) -> bool:
        """Return whether cuDNN can run this, in the version that torch's wheels bring."""
        dims = (self.query.shape[-1], self.value.shape[-1])
        limit = 192 if dims == (192, 128) and self.capability in ((9, 0), (10, 0)) else 128
        return (
            torch._C._get_cudnn_sdp_enabled()
            and not torch.are_deterministic_algorithms_enabled()
            and (8, 0) <= self.capability <= (12, 1)
            and (self.dropout * 16).is_integer()
            and max(dims) <= limit
            and all(dim % 8 == 0 for dim in dims)
            and self.key.shape[-2] != 1
            and self._is_dense(_HALF, grouped=True)
        )

    @property
    def _trains(self) -> bool:
        return any(tensor.requires_grad for tensor in (self.query, self.key, self.value))

    def _lacks_backward(self, dim: int) -> bool:
        """Return whether the device has too little shared memory for FlashAttention's backward."""
        small = (8, 6) <= self.capability <= (8, 9) or self.capability >= (12, 0)
        return small and dim > 192 and (dim <= 224 or self.dropout > 0)

    def _alignment(self) -> int:
        """Entries of a row that the memory-efficient kernel loads at a time."""
        half = self.query.dtype in _HALF
        tensor_cores = self.capability >= (8, 0) or (self.capability >= (7, 0) and half)
        least = 4 if self.capability >= (8, 0) else 1
        return max(least, 128 // (16 if half else 32)) if tensor_cores else least

    def _is_dense(self, types: tuple[torch.dtype, ...], grouped: bool) -> bool:
        """Return whether the tensors are of one of the types and go together; `grouped`: also with fewer heads of keys."""
        tensors = (self.query, self.key, self.value)
        if any(tensor.ndim != 4 or 0 in tensor.shape[2:3] or tensor.stride(-1) != 1 for tensor in tensors):
            return False
        if self.query.dtype not in types or len({tensor.dtype for tensor in tensors}) > 1:
            return False
        if len({tensor.shape[0] for tensor in tensors}) > 1:
            return False
        heads = [tensor.shape[1] for tensor in tensors]
        if self.grouped and grouped:
            return heads[1] == heads[2] and heads[0] % heads[1] == 0
        return len({*heads}) == 1


def _order(capability: tuple[int, int]) -> tuple[SDPBackend, ...]:
    """Return the kernels as torch tries them: as it was told, else cuDNN's first on Hopper and the first Blackwells."""
    priorities = [int(number) for number in torch._C._get_sdp_priority_order()]
    known = {int(backend.value): backend for backend in _DEFAULT_ORDER}
    order = tuple(known[number] for number in priorities if number in known)
    last = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    if order == _DEFAULT_ORDER and capability[0] in (9, 10) and not last:
        return (
            SDPBackend.CUDNN_ATTENTION,
            *(each for each in order if each is not SDPBackend.CUDNN_ATTENTION),
        )
    return order


@contextmanager
def kernels_of(capability: tuple[int, int]) -> Iterator[None]:
    """Temporarily run `scaled_dot_product_attention` of fake CUDA tensors in the kernel that such a device would pick."""
    from torch._subclasses import fake_impls
    from torch._subclasses.fake_tensor import FakeTensorMode

    def choice(
        _mode: Any,
        _func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        enable_gqa: bool = False,
        **kwargs: Any,
    ) -> int:
        call = Attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, capability)
        return int(call.kernel().value)

    replacement = {torch.ops.aten._fused_sdp_choice.default: choice}
    FakeTensorMode.cache_clear()  # it may hold what another device would pick
    try:
        with mock.patch.dict(fake_impls.op_implementations_dict, replacement):
            yield
    finally:
        FakeTensorMode.cache_clear()
