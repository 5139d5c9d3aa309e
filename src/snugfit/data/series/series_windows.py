"""Windows over series: the steps before an origin, scaled by themselves alone, and those behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from snugfit.data.examples import Examples, WholeBatches
from snugfit.data.series.time_series import Series
from snugfit.data.series.time_steps import TimeStep, calendar_columns

INPUTS = ("history", "observed", "known", "past")
"""Inputs of a model: the target and where it is known, shape (rows, history); covariates, (rows, history + horizon, columns) and (rows, history, columns)."""
ERROR_UNIT = "error_unit"
"""What errors of a row are divided by for MASE, in the unit of its history; NaN where that is not known."""
_LEAST_SPREAD = 1e-12
"""Part of its mean by which a history has to vary, so that it is divided by that: below is the rounding of float64."""

Scales = Sequence[tuple[float, float]]
"""Mean and deviation of each covariate in the rows to train on."""


class SeriesWindows(WholeBatches):
    """Windows as examples: `history`, `observed`, `known` and `past`; with `labels` and `error_unit` where they are scored.

    A history is scaled by its own mean and deviation, and so are its labels: nothing behind the origin decides how it is seen.

    Args:
        rows: where each origin comes from.
        steps: of all series, one after another.
        origins: places in `steps` of the first step behind each history.
        units: of errors, one a window; None where nothing is scored.
        ahead: of each window, the names and times of the steps to predict; empty where they are scored.
    """

    def __init__(
        self,
        rows: Examples,
        steps: Mapping[str, Tensor],
        origins: Sequence[int],
        history: int,
        horizon: int,
        units: Sequence[float] | None = None,
        ahead: Sequence[Sequence[Mapping[str, Any]]] = (),
    ) -> None:
        super().__init__(rows, alike=True)
        self._steps, self._ahead = steps, ahead
        self._origins = torch.tensor(origins, dtype=torch.int64)
        self._history, self._horizon = torch.arange(-history, 0), torch.arange(horizon)
        self._units = None if units is None else torch.tensor(units, dtype=torch.float64)

    def batch(self, places: Sequence[int]) -> dict[str, Tensor]:
        """Return a batch of the windows at these places."""
        return self._made(torch.tensor(places))[0]

    def __getitem__(self, place: int) -> dict[str, Any]:
        """Return a window; where it is not scored also `mean` and `spread` of its history, and its `steps` ahead."""
        batch, mean, spread = self._made(torch.tensor([place]))
        example: dict[str, Any] = {name: values[0] for name, values in batch.items()}
        if self._units is None:
            example |= {"mean": mean.item(), "spread": spread.item(), "steps": self._ahead[place]}
        return example

    def _made(self, places: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return a batch, and in float64 the mean and the spread of each history, shape (rows, 1)."""
        origins = self._origins[places].unsqueeze(1)
        before, behind = origins + self._history, origins + self._horizon
        values = self._steps["values"]
        history = values[before]
        observed = ~history.isnan()
        counts = observed.sum(dim=1, keepdim=True)
        mean = history.nan_to_num().sum(dim=1, keepdim=True) / counts
        distances = torch.where(observed, history - mean, 0.0)
        spread = (distances.square().sum(dim=1, keepdim=True) / counts).sqrt()
        size = mean.abs()
        spread = torch.where(spread > _LEAST_SPREAD * size, spread, torch.where(size > 0, size, 1.0))
        batch = {
            "history": (distances / spread).float(),
            "observed": observed.float(),
            "known": self._steps["known"][torch.cat([before, behind], dim=1)],
            "past": self._steps["past"][before],
        }
        if self._units is not None:
            batch["labels"] = ((values[behind] - mean) / spread).float()
            batch[ERROR_UNIT] = (self._units[places] / spread[:, 0]).float()
        return batch, mean, spread


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch of the inputs, and of labels where there are any."""
    names = [name for name in (*INPUTS, "labels", ERROR_UNIT) if name in examples[0]]
    return {name: torch.stack([example[name] for example in examples]) for name in names}


def steps_of(
    series: Sequence[Series], known: int, scales: Scales, step: TimeStep, horizon: int
) -> tuple[dict[str, Tensor], list[int]]:
    """Return the steps of series one after another, and the place at which each begins.

    Behind each lie as many steps as the horizon, so that those to predict have a calendar. A covariate that is not known is read as the mean.

    Args:
        known: how many of the covariates are known ahead; they come first.
    """
    values: list[NDArray[np.float64]] = []
    columns: list[NDArray[np.float32]] = []
    starts, total = [], 0
    for each in series:
        length = len(each.values) + horizon
        starts.append(total)
        total += length
        values.append(np.pad(each.values, (0, horizon), constant_values=np.nan))
        scaled = np.zeros((length, len(scales)), np.float32)
        for place, (mean, spread) in enumerate(scales):
            scaled[: len(each.values), place] = np.nan_to_num((each.covariates[:, place] - mean) / spread)
        moments = np.array(each.moments(step, 0, length), np.int64)
        columns.append(np.concatenate([scaled, calendar_columns(moments, step)], axis=1))
    whole = torch.from_numpy(np.concatenate(columns))
    return {
        "values": torch.from_numpy(np.concatenate(values)),
        "known": torch.cat([whole[:, :known], whole[:, len(scales) :]], dim=1),
        "past": whole[:, known : len(scales)].contiguous(),
    }, starts


def scales_of(series: Sequence[Series], ends: Sequence[int], columns: int) -> list[tuple[float, float]]:
    """Return mean and deviation of each covariate over the steps of series up to their ends."""
    scales = []
    for column in range(columns):
        values = np.concatenate(
            [each.covariates[:end, column] for each, end in zip(series, ends, strict=True)]
        )
        values = values[~np.isnan(values)]
        scales.append((float(values.mean()), float(values.std()) or 1.0))
    return scales


def naive_error(values: NDArray[np.float64], season: int) -> float:
    """Return the mean error of the seasonal naive forecast of one step of each value, NaN where there is none or it is 0.

    Source: Hyndman and Koehler 2006, doi:10.1016/j.ijforecast.2006.03.001, equation 6.

    >>> naive_error(np.array([1.0, 2.0, 3.0, 5.0]), 2)
    2.5
    """
    errors = np.abs(values[season:] - values[:-season]) if len(values) > season else np.empty(0)
    errors = errors[~np.isnan(errors)]
    return float(errors.mean()) if len(errors) and errors.any() else float("nan")


def seasonal_naive(
    values: NDArray[np.float64], origin: int, horizon: int, season: int
) -> NDArray[np.float64]:
    """Return the forecast that repeats the last season before an origin; in a gap the one before it, else the last value.

    >>> seasonal_naive(np.array([9.0, 1.0, 2.0, 3.0]), 4, 5, 3).tolist()
    [1.0, 2.0, 3.0, 1.0, 2.0]
    """
    before = values[:origin]
    there = before[~np.isnan(before)]
    forecast = np.full(horizon, there[-1] if len(there) else np.nan)
    for ahead in range(horizon):
        place = origin + ahead - season * (ahead // season + 1)
        while place >= 0 and np.isnan(values[place]):
            place -= season
        if place >= 0:
            forecast[ahead] = values[place]
    return forecast
