"""The graph that autograd has kept of a result: the weights it was computed with, a gradient of zero for others, and the kernels of attention."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
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


def leaves_behind(values: Tensor) -> set[Tensor]:
    """Return the leaves that a backward from `values` gives a gradient.

    >>> weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> leaves_behind(2 * weight + 1) == {weight}
    True
    """
    leaves = {getattr(node, "variable", None) for node in nodes_behind(values)}
    return {leaf for leaf in leaves if leaf is not None}


def nodes_behind(values: Tensor) -> Iterator[Any]:
    """Yield the nodes of the graph that a backward from `values` visits, each once."""
    waiting: list[Any] = [] if values.grad_fn is None else [values.grad_fn]
    known = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        further = {before for before, _ in node.next_functions if before is not None} - known
        known |= further
        waiting += further


def with_no_gradient_of(values: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """`values`, whose backward gives these leaves a gradient of zero too; their numbers are not looked at.

    >>> weight, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> with_no_gradient_of(2 * weight, [other]).sum().backward()
    >>> weight.grad, other.grad
    (tensor([2., 2.]), tensor([0., 0.]))
    """
    through: Tensor = _Through.apply(values, *leaves)  # type: ignore[no-untyped-call]
    return through


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(values: Tensor, *leaves: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Iterable[Tensor], _output: Tensor) -> None:
        _, *leaves = inputs
        ctx.kinds = [(each.shape, each.dtype, each.device) for each in leaves]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (gradient,) = gradients
        zeros = (torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.kinds)
        return (gradient, *zeros)


def kernels_behind(outputs: Tensor) -> set[str]:
    """Return the kernels of attention that `outputs` were computed in: fused ones by name, `math` for a softmax of its own.

    Nothing is computed, and no device is asked. What was compiled shows as `compiled`: its kernels are not in the graph.

    >>> import torch
    >>> query = torch.ones(1, 2, 4, 8, requires_grad=True)
    >>> kernels_behind(torch.nn.functional.scaled_dot_product_attention(query, query, query))
    {'flash'}
    """
    names = {_LAST.sub("", node.name().rpartition("::")[2], count=1) for node in nodes_behind(outputs)}
    return {_NODES[name] for name in names if name in _NODES}


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
