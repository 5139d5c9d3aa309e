"""The spread of the weights that train, for trackers that show it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BINS = 64
_AT_ONCE = 1 << 22
"""Values of a weight that are copied in one piece, so that the look at a large one takes little memory."""


def weight_histograms(model: nn.Module, _update: int, _folder: Path) -> tuple[str, dict[str, Any]]:
    """Return how many values of each weight that trains lie in each of `BINS` equal parts between its least and its greatest one.

    Values that are not finite are counted in `not_finite`. A weight without a finite value has no bins.
    """
    spread = {
        name: _histogram(parameter.detach())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.is_floating_point() and parameter.numel()
    }
    return "histograms", {"histograms": spread}


def _histogram(weight: Tensor) -> dict[str, Any]:
    ends = [(float(part.min()), float(part.max()), part.numel()) for part in _finite(weight)]
    not_finite = weight.numel() - sum(count for _, _, count in ends)
    if not ends:
        return {"counts": [], "not_finite": not_finite}
    low, high = min(low for low, _, _ in ends), max(high for _, high, _ in ends)
    if low == high:  # as of a bias at its beginning
        width = max(abs(low), 1.0) * 1e-6
        low, high = low - width, high + width
    counts = torch.zeros(BINS, dtype=torch.int64)
    for part in _finite(weight):
        places = ((part - low) * (BINS / (high - low))).long().clamp_(0, BINS - 1)
        counts += places.bincount(minlength=BINS).cpu()  # histc has no deterministic form on CUDA
    return {"low": low, "high": high, "counts": counts.tolist(), "not_finite": not_finite}


def _finite(weight: Tensor) -> Iterator[Tensor]:
    """Yield the finite values of a weight, piece by piece."""
    for part in weight.flatten().split(_AT_ONCE):
        values = part.float()
        values = values[values.isfinite()]
        if values.numel():
            yield values
