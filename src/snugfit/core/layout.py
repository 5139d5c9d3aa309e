"""How a tensor lies in memory."""

from __future__ import annotations

from typing import Any

import torch


def laid_out_like(parameter: torch.Tensor, kept: Any) -> Any:
    """The same state, in which each tensor of the parameter's shape has the parameter's strides, on its own device.

    >>> parameter, moment = torch.zeros(3, 2).t(), torch.zeros(2, 3)
    >>> laid_out_like(parameter, {"moment": moment})["moment"].stride()
    (1, 2)
    """
    if isinstance(kept, dict):
        return {name: laid_out_like(parameter, value) for name, value in kept.items()}
    if type(kept) is not type(parameter.data) or kept.shape != parameter.shape:
        return kept  # no moment; or one in a format of its own, whose blocks do not lie like the weight
    if kept.stride() == parameter.stride():
        return kept
    return torch.empty_like(parameter, dtype=kept.dtype, device=kept.device).copy_(kept)
