"""Cross-entropy of logits that are large: fewer tensors of their size stand in memory than with torch's own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 1 << 16
"""Numbers of logits from which on this pays: a function of Python in the graph costs as much as some small kernels."""

IN_PLACE = {"cpu"}
"""Devices whose kernel is known to read a row before it writes to it, so that it may write where it reads. On CUDA nobody has seen it yet:
`benchmarks/gpu/run.sh correct` looks."""
_NO_REDUCTION = 0  # as torch numbers it


class LargeCrossEntropy(torch.autograd.Function):
    """Values, shape (rows,), of logits (rows, classes) and integer labels (rows,); those at `ignored` rows are 0, and so are their gradients.

    Bit for bit those of `F.cross_entropy`, also where logits of ignored rows are NaN: what comes back of them is cleared behind the backward, in
    place, where clearing the logits before the forward takes a copy of them there, and another one of their gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, ignored: Tensor, ignore_index: int) -> Tensor:
        log_probabilities = torch.log_softmax(logits, -1)
        ctx.save_for_backward(log_probabilities, labels, ignored)
        ctx.ignore_index = ignore_index
        return F.nll_loss(log_probabilities, labels, ignore_index=ignore_index, reduction="none")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_values: Tensor) -> tuple[Tensor | None, ...]:
        log_probabilities, labels, ignored = ctx.saved_tensors
        nothing = d_values.new_zeros(())
        gradient: Tensor = torch.ops.aten.nll_loss_backward.default(
            d_values, log_probabilities, labels, None, _NO_REDUCTION, ctx.ignore_index, nothing
        )
        in_place = gradient.device.type in IN_PLACE
        torch.ops.aten._log_softmax_backward_data.out(
            gradient,
            log_probabilities,
            -1,
            gradient.dtype,
            out=(d_logits := gradient if in_place else torch.empty_like(gradient)),
        )
        return d_logits.masked_fill_(ignored.unsqueeze(-1), 0.0), None, None, None
