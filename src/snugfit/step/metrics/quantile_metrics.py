"""Metrics of quantiles: how far they are from what came, in what unit, and how often it lies between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.losses import pinball, quantiles_of
from snugfit.core.scalar_reads import read
from snugfit.errors import SettingError
from snugfit.strategies.base import Strategy

Values = tuple[Tensor, Tensor]
"""A value of each step, and 1 where it counts, 0 where not; both of the shape of the labels."""


class MeanOverSteps:
    """The mean of a value of each step that counts.

    Args:
        values: of outputs and data.
    """

    def __init__(self, values: Callable[[Any, Any], Values]) -> None:
        self._values = values
        self._sums: list[Tensor] = []

    def update(self, outputs: Any, part: Batch) -> None:
        values, counts = self._values(outputs, part.data)
        total = torch.where(counts > 0, values, 0.0).sum()
        self._sums.append(torch.stack([total, counts.sum()]).detach())

    def compute(self, strategy: Strategy) -> float:
        # in float64, which only the host has everywhere
        pairs = read(torch.stack(self._sums), assume=[[0.0, 1.0]] * len(self._sums)) if self._sums else []
        totals = strategy.tell((sum(total for total, _ in pairs), sum(count for _, count in pairs)))
        count = sum(each for _, each in totals)
        return float(sum(total for total, _ in totals) / count) if count else math.nan


def _pinball(outputs: Any, data: Any) -> Values:
    terms = pinball(outputs, data)
    assert terms.weights is not None
    return terms.values, terms.weights


def _mase(outputs: Any, data: Any) -> Values:
    """Return the error of the median in units of the seasonal naive forecast's error in the steps to train on.

    Source: Hyndman and Koehler 2006, doi:10.1016/j.ijforecast.2006.03.001.
    """
    if not isinstance(data, Mapping) or "error_unit" not in data:
        raise SettingError(
            "evaluate.metrics",
            "mase needs the error of the seasonal naive forecast of each series",
            "Use it for task forecasting, or give each row its 'error_unit'.",
        )
    quantiles, levels, labels = quantiles_of(outputs, data)
    median = quantiles.gather(-1, _nearest(levels, 0.5, quantiles)).squeeze(-1)
    unit = data["error_unit"].unsqueeze(-1)
    errors = (median - labels).abs() / unit
    return errors, (~errors.isnan()).float()


def _coverage(outputs: Any, data: Any) -> Values:
    """Return 1 for each step between the lowest and the highest quantile."""
    quantiles, _, labels = quantiles_of(outputs, data)
    inside = (labels >= quantiles[..., 0]) & (labels <= quantiles[..., -1])
    return inside.float(), (~labels.isnan()).float()


def _nearest(levels: Tensor, level: float, quantiles: Tensor) -> Tensor:
    """Return the place of the level that is nearest, for each step."""
    place = (levels - level).abs().argmin(dim=-1)
    return place.view(-1, *[1] * (quantiles.ndim - 1)).expand(*quantiles.shape[:-1], 1)


OF_QUANTILES: Mapping[str, Callable[[], MeanOverSteps]] = {
    "pinball": partial(MeanOverSteps, _pinball),
    "mase": partial(MeanOverSteps, _mase),
    "coverage": partial(MeanOverSteps, _coverage),
}
