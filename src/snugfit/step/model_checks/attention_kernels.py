"""The kernels that attention was computed in, read off the graph that autograd has kept of it."""

from __future__ import annotations

import re

from torch import Tensor, nn

_NODES = {
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductCudnnAttention": "cudnn",
    "FlashAttnFunc": "flash_attention_2",
    "FlashAttnVarlenFunc": "flash_attention_2",
    "FlexAttentionAutogradOp": "flex_attention",
    "Softmax": "math",
    "SafeSoftmax": "math",
    "CompiledFunction": "compiled",
    "GeneratedBackwardFor_torch_attn__varlen_attn_default": "flash_varlen",
}
"""Beginnings of the names of backward nodes, before `ForCpu` and `Backward`, and what is said of them."""
_LAST = re.compile(r"(ForCpu)?(Backward\d*)?$")


def kernels_behind(outputs: Tensor) -> set[str]:
    """Return the kernels of attention that `outputs` were computed in: fused ones by name, `math` for a softmax of its own.

    Nothing is computed, and no device is asked. What was compiled shows as `compiled`: its kernels are not in the graph.

    >>> import torch
    >>> query = torch.ones(1, 2, 4, 8, requires_grad=True)
    >>> kernels_behind(torch.nn.functional.scaled_dot_product_attention(query, query, query))
    {'flash'}
    """
    kernels: set[str] = set()
    seen = {outputs.grad_fn}
    left = [outputs.grad_fn]
    while left:
        node = left.pop()
        if node is None:
            continue
        name = _LAST.sub("", node.name().rpartition("::")[2], count=1)
        if name in _NODES:
            kernels.add(_NODES[name])
        for behind, _ in node.next_functions:
            if behind not in seen:
                seen.add(behind)
                left.append(behind)
    return kernels


def kernels_of(outputs: Tensor, model: nn.Module) -> set[str]:
    """Return the kernels of attention that a model has computed its outputs in.

    FlexAttention is compiled by transformers itself, and shows in the graph as what is compiled.
    """
    kernels = kernels_behind(outputs)
    if "compiled" in kernels and any(map(_attends_by_flex, model.modules())):
        return kernels - {"compiled"} | {"flex_attention"}
    return kernels


def _attends_by_flex(module: nn.Module) -> bool:
    return getattr(getattr(module, "config", None), "_attn_implementation", None) == "flex_attention"
