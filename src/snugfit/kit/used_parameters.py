"""The weights that a result was computed with, and a gradient of zero for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


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
