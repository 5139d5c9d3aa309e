"""A network for series: TiDE, residual multilayer perceptrons over a window, whose quantiles never cross."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.models.own_networks import drawn, number, read_settings, whole_number

TIDE = "tide"


@dataclass(frozen=True, kw_only=True)
class SeriesSettings:
    """A network for series, without what its windows decide.

    Args:
        width: of the layers of the encoder and the decoder.
        blocks: of each of the two.
        step_width: numbers that the decoder gives each step ahead.
        step_layers: width of the layer that turns those into quantiles.
        covariates: numbers that the covariates of one step become.
        dropout: part of a layer's outputs that is dropped.
    """

    width: int = 256
    blocks: int = 2
    step_width: int = 16
    step_layers: int = 64
    covariates: int = 4
    dropout: float = 0.1


def series_settings(model: str, folder: Path | None = None) -> SeriesSettings:
    """Return the settings of a network: of 'tide', or those in a JSON file.

    Raises:
        ModelError: it is neither, or the file cannot be used.
    """
    return read_settings(
        model, folder, SeriesSettings, named={TIDE: SeriesSettings()}, rules=_RULES, purpose="series"
    )


_RULES = {
    **dict.fromkeys(("width", "blocks", "step_width", "step_layers", "covariates"), whole_number()),
    "dropout": number(below=1),
}


@dataclass(frozen=True, kw_only=True)
class SeriesNetwork:
    """A network for windows of one form, as JSON holds it.

    Args:
        history, horizon: steps that it sees, and steps that it predicts.
        known, past: numbers of each step that are known ahead, and of those known up to now only.
        quantiles: ascending, with 0.5 among them.
    """

    settings: SeriesSettings
    history: int
    horizon: int
    known: int
    past: int
    quantiles: Sequence[float]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SeriesNetwork:
        """Return what `as_dict` gave."""
        return cls(**{**values, "settings": SeriesSettings(**values["settings"])})

    def make(self, seed: int = 0, *, empty: bool = False) -> nn.Module:
        """Return the network, with weights drawn from a seed, or none: on the meta device."""
        return drawn(lambda: _Network(self), seed, empty=empty)


class _Network(nn.Module):
    """Windows to quantiles of each step ahead, in units of the history: `logits` (rows, horizon, quantiles), and `levels` (rows, quantiles).

    Source: Das et al. 2023, arXiv:2304.08424. Departs from it: the history says where it has gaps, and the last layer puts out the median
    and the distances between neighbouring quantiles, which are positive.
    """

    levels: Tensor

    def __init__(self, shape: SeriesNetwork) -> None:
        super().__init__()
        settings, dropout = shape.settings, shape.settings.dropout
        self.horizon, self.median = shape.horizon, list(shape.quantiles).index(0.5)
        known = settings.covariates if shape.known else 0
        past = settings.covariates if shape.past else 0
        self.known = _Residual(shape.known, settings.step_layers, known, dropout) if known else None
        self.past = _Residual(shape.past, settings.step_layers, past, dropout) if past else None
        inputs = (2 + past) * shape.history + known * (shape.history + shape.horizon)
        width, outputs = settings.width, settings.step_width * shape.horizon
        body: list[nn.Module] = []
        for block in range(settings.blocks):
            body.append(_Residual(width if block else inputs, width, width, dropout))
        for block in range(settings.blocks):
            last = block == settings.blocks - 1
            body.append(_Residual(width, width, outputs if last else width, dropout))
        self.body = nn.Sequential(*body)
        self.head = _Residual(
            settings.step_width + known, settings.step_layers, len(shape.quantiles), dropout, norm=False
        )
        self.skip = nn.Linear(shape.history, shape.horizon)
        levels = torch.tensor(shape.quantiles, dtype=torch.float32)
        self.register_buffer("levels", levels, persistent=False)

    def forward(
        self, history: Tensor, observed: Tensor, known: Tensor, past: Tensor, error_unit: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return quantiles, as the class says; `error_unit` is for metrics."""
        del error_unit
        parts, ahead = [history, observed], None
        if self.known is not None:
            covariates = self.known(known)
            ahead = covariates[:, -self.horizon :]
            parts.append(covariates.flatten(1))
        if self.past is not None:
            parts.append(self.past(past).flatten(1))
        steps = self.body(torch.cat(parts, dim=1)).unflatten(1, (self.horizon, -1))
        if ahead is not None:
            steps = torch.cat([steps, ahead], dim=2)
        raw = self.head(steps).float()
        median = raw[..., self.median] + self.skip(history).float()
        below = F.softplus(raw[..., : self.median]).flip(-1).cumsum(dim=-1).flip(-1)
        above = F.softplus(raw[..., self.median + 1 :]).cumsum(dim=-1)
        median = median.unsqueeze(-1)
        quantiles = torch.cat([median - below, median, median + above], dim=-1)
        return {"logits": quantiles, "levels": self.levels.expand(len(quantiles), -1)}


class _Residual(nn.Module):
    """A layer of one hidden layer beside a linear one.

    Source: Das et al. 2023, arXiv:2304.08424, section 4.1.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float, *, norm: bool = True) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.Dropout(dropout)
        )
        self.skip = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs) if norm else nn.Identity()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (..., outputs)."""
        outputs: Tensor = self.norm(self.layers(inputs) + self.skip(inputs))
        return outputs
