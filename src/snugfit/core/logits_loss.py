"""Cross-entropy of logits that are large: fewer tensors of their size stand in memory than with torch's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LARGE = 1 << 16
"""Numbers of logits from which on this pays: a function of Python in the graph costs as much as some small kernels."""

IN_PLACE = {"cpu"}
"""Devices whose kernel is known to read a row before it writes to it, so that it may write where it reads. On CUDA nobody has seen it yet:
`benchmarks/gpu/run.sh correct` looks."""
_NO_REDUCTION = 0  # as torch numbers it


class LargeCrossEntropy(torch.autograd.Function):
    """Values, shape (rows,), of logits (rows, classes) and integer labels (rows,); those at `ignored` rows are 0, and so are their gradients.

    Bit for bit those of `F.cross_entropy`, also where logits of ignored rows are NaN: what comes back of them is cleared behind the backward, in
    place, where clearing the logits before the forward takes a copy of them there, and another one of their gradient. Log-probabilities are
    returned too: by them gradients have gradients of their own, as a loss that is made of gradients needs them.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor,
        labels: Tensor,
        ignored: Tensor,  # noqa: ARG004  # backward takes it
        ignore_index: int,
    ) -> tuple[Tensor, Tensor]:
        log_probabilities = torch.log_softmax(logits, -1)
        values = F.nll_loss(log_probabilities, labels, ignore_index=ignore_index, reduction="none")
        return values, log_probabilities

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, labels, ignored, ctx.ignore_index = inputs
        ctx.save_for_backward(output[1], labels, ignored)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, d_values: Tensor | None, d_log_probabilities: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        log_probabilities, labels, ignored = ctx.saved_tensors
        if d_values is None or d_log_probabilities is not None or torch.is_grad_enabled():
            gradient = _differentiable(d_values, d_log_probabilities, log_probabilities, labels, ignored)
        else:
            gradient = _in_place(d_values, log_probabilities, labels, ctx.ignore_index)
            gradient.masked_fill_(ignored.unsqueeze(-1), 0.0)
        return gradient, None, None, None


def _in_place(d_values: Tensor, log_probabilities: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    nothing = d_values.new_zeros(())
    gradient: Tensor = torch.ops.aten.nll_loss_backward.default(
        d_values, log_probabilities, labels, None, _NO_REDUCTION, ignore_index, nothing
    )
    d_logits = gradient if gradient.device.type in IN_PLACE else torch.empty_like(gradient)
    torch.ops.aten._log_softmax_backward_data.out(
        gradient, log_probabilities, -1, gradient.dtype, out=d_logits
    )
    return d_logits


def _differentiable(
    d_values: Tensor | None,
    d_log_probabilities: Tensor | None,
    log_probabilities: Tensor,
    labels: Tensor,
    ignored: Tensor,
) -> Tensor:
    """Return the gradient of logits by operations that have gradients themselves."""
    rows = ignored.unsqueeze(-1)
    log_probabilities = log_probabilities.masked_fill(rows, 0.0)  # NaN would come back through these
    gradient = torch.zeros_like(log_probabilities)
    if d_values is not None:
        at = labels.masked_fill(ignored, 0).long().unsqueeze(-1)
        gradient = gradient.scatter(-1, at, -d_values.unsqueeze(-1))
    if d_log_probabilities is not None:
        gradient = gradient + d_log_probabilities
    gradient = gradient - log_probabilities.exp() * gradient.sum(dim=-1, keepdim=True)
    return gradient.masked_fill(rows, 0.0)
