"""Sums over ranks of gradients that each rank has whole: one message of each type, in which scalars travel along."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.scalar_reads import read
from snugfit.kit.optimizers.foreach import copy_, gradients_of


def add_up_gradients_(parameters: Sequence[nn.Parameter], scalars: Sequence[Tensor]) -> list[Tensor] | None:
    """Add up the gradients of the parameters over ranks, in place; all ranks call this for the same parameters.

    A parameter that only other ranks have reached gets their sum, and one that none has reached stays without a gradient: each message says
    which ones its rank has reached, and a rank that has reached all of them reads nothing.

    Args:
        scalars: of one type; they travel with the gradients of that type.
    Returns:
        The sums of the scalars; None where there are no gradients of their type, so that they were not sent.
    """
    kinds: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.requires_grad:
            kinds.setdefault(parameter.grad_dtype or parameter.dtype, []).append(parameter)
    sums: list[Tensor] | None = None
    for dtype, alike in kinds.items():
        along = [each.reshape(1) for each in scalars if each.dtype == dtype]
        sent = _add_up_alike_(alike, dtype, along)
        sums = sent if along else sums
    return sums


def _add_up_alike_(
    parameters: Sequence[nn.Parameter], dtype: torch.dtype, along: list[Tensor]
) -> list[Tensor]:
    """Add up the gradients of one type; returns the sums of what travels along."""
    pieces = [_flat(each, dtype) for each in parameters]
    missing = [place for place, each in enumerate(parameters) if each.grad is None]
    ranks = pieces[0].new_ones(len(parameters))  # that have a gradient of each
    if missing:
        ranks[missing] = 0
    message = torch.cat([*pieces, ranks, *along])
    dist.all_reduce(message)
    *parts, ranks, scalars = message.split([*(each.numel() for each in pieces), len(parameters), len(along)])
    sums = [part.view(each.shape) for part, each in zip(parts, parameters, strict=True)]
    dense = [
        place for place, each in enumerate(parameters) if each.grad is not None and not each.grad.is_sparse
    ]
    copy_(gradients_of(parameters[place] for place in dense), [sums[place] for place in dense])
    if missing:
        counts: list[float] = read(ranks, assume=[1.0] * len(parameters))
        for place in missing:
            if counts[place] > 0:
                parameters[place].grad = torch.empty_like(parameters[place], dtype=dtype).copy_(sums[place])
    return list(scalars)


def _flat(parameter: nn.Parameter, dtype: torch.dtype) -> Tensor:
    """Return a parameter's gradient as one row: zeros where it has none, and dense where it is sparse, which the step refuses."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros(parameter.numel(), dtype=dtype, device=parameter.device)
    return (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
