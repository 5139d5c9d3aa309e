"""The layout in memory of an optimizer's state, which is that of its parameter."""

from __future__ import annotations

from typing import Any

import torch


def laid_out_like(parameter: torch.Tensor, state: Any) -> Any:
    """Return the same state, in which each moment has the parameter's strides, a factored one those of the parameter's rows or columns.

    Sums are added in the order of memory, so a moment with other strides than before the checkpoint gives other bits.

    >>> parameter, moment = torch.zeros(3, 2).t(), torch.zeros(2, 3)
    >>> laid_out_like(parameter, {"moment": moment})["moment"].stride()
    (1, 2)
    """
    if isinstance(state, dict):
        return {name: laid_out_like(parameter, value) for name, value in state.items()}
    if type(state) is not type(parameter.data) or state.ndim != parameter.ndim:
        return state  # no moment; or one in a format of its own, whose blocks do not lie like the weight
    like = parameter if state.shape == parameter.shape else _part(parameter, state)
    if like is None or state.stride() == like.stride():
        return state
    return torch.empty_like(like, dtype=state.dtype, device=state.device).copy_(state)


def _part(parameter: torch.Tensor, moment: torch.Tensor) -> torch.Tensor | None:
    """Return the first rows or columns of a parameter, as many as a factored moment has; None if it is no part."""
    if type(moment) is not torch.Tensor or any(
        size > whole for size, whole in zip(moment.shape, parameter.shape, strict=True)
    ):
        return None
    return torch.empty_like(parameter[tuple(slice(size) for size in moment.shape)])
