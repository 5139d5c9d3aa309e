"""Unreduced terms of a loss with weights: they are divided once, over the whole window and all ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import SettingError, nearest
from snugfit.system.update_value import update_value


@update_value(frozen=True, slots=True)
class LossTerms:
    """Unreduced losses and their weights.

    Sums are in float32 at least, whatever the values and weights are in: bf16 cannot count beyond 256.

    Args:
        values: losses, shape (rows, ...).
        weights: of the same shape, not negative, without a gradient; None means that every value counts once.
        parts: terms that the values are made of, by name, each of the same shape; the mean of each is logged.
    """

    values: Tensor
    weights: Tensor | None = None
    parts: Mapping[str, Tensor] | None = None

    @classmethod
    def of(
        cls,
        parts: Mapping[str, Tensor],
        factors: Mapping[str, float] | None = None,
        weights: Tensor | None = None,
    ) -> LossTerms:
        """Return the sum of named terms, each times its factor, 1 where none is given; the mean of each, without it, is logged.

        >>> fit, size = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 30.0])
        >>> LossTerms.of({"fit": fit, "size": size}, {"size": 0.1}).values
        tensor([2., 6.])

        Args:
            parts: unreduced losses of one shape, the rows first.
            weights: of the values, as in `LossTerms`; all parts have the same ones.
        Raises:
            SettingError: there are none, or their shapes differ.
        """
        factors = factors or {}
        shapes = {name: tuple(getattr(part, "shape", ())) for name, part in parts.items()}
        if len(set(shapes.values())) != 1:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "none"
            raise SettingError(
                "loss",
                f"got terms of different shapes ({listed})" if parts else "got no terms",
                "Give all of them one value a row, such as values.flatten(1).mean(1), or one a token.",
            )
        values = [part if factors.get(name, 1) == 1 else factors[name] * part for name, part in parts.items()]
        return cls(functools.reduce(torch.add, values), weights, parts)

    def weighted_sum(self) -> Tensor:
        """Sum of weight times value; a value of weight 0 counts as 0, even if it is NaN."""
        values = widened(self.values)
        if self.weights is None:
            return values.sum()
        weights = self._wide_weights()
        return torch.where(weights > 0, values * weights, 0.0).sum()

    def weight(self) -> Tensor | float:
        """Sum of the weights: a number when every value counts once."""
        return float(self.values.numel()) if self.weights is None else self._wide_weights().sum()

    def detached_sum(self) -> Tensor:
        """Sum of weight times value, outside of the graph."""
        if self.weights is None and self.values.dtype is torch.float32:
            return self.values.detach().sum()
        return LossTerms(self.values.detach(), self.weights).weighted_sum()

    def part_sums(self) -> dict[str, Tensor]:
        """Return the sum of weight times value of each part, outside of the graph."""
        parts = (self.parts or {}).items()
        return {name: LossTerms(part.detach(), self.weights).detached_sum() for name, part in parts}

    def gradient(self, divisor: Tensor | float) -> Tensor:
        """Gradient of the weighted sum over `divisor` with respect to the values: where backward begins."""
        if self.weights is None:
            if not isinstance(divisor, Tensor):
                return torch.full_like(self.values, 1.0 / divisor)
            return torch.ones_like(self.values) / divisor
        return (self._wide_weights() / divisor).to(self.values.dtype)

    def by_row(self) -> LossTerms:
        """Return one value (the row's weighted mean) and one weight a row."""
        rows = self.values.shape[0]
        values = widened(self.values)
        weights = torch.ones_like(values) if self.weights is None else self._wide_weights()
        parts = self.parts and {
            name: LossTerms(part, weights).by_row().values for name, part in self.parts.items()
        }
        if values.ndim == 1:
            return LossTerms(values, weights, parts)
        values, weights = values.reshape(rows, -1), weights.reshape(rows, -1)
        weight = weights.sum(dim=1)
        total = torch.where(weights > 0, values * weights, 0.0).sum(dim=1)
        return LossTerms(total / torch.where(weight > 0, weight, 1.0), weight, parts)

    def _wide_weights(self) -> Tensor:
        assert self.weights is not None
        return widened(self.weights)


NEGATIVE = -math.inf
"""The weight of a window in which a loss has returned a negative one: read with the window's sums, so that it costs no wait."""


def check_weight(weight: float) -> None:
    """Refuse the sum of a window's weights where one of them was negative.

    Raises:
        SettingError: it was.
    """
    if weight == NEGATIVE:
        raise SettingError(
            "loss",
            "got negative weights in LossTerms, expected zero or positive ones",
            "Put the sign into the values: LossTerms(sign * values, weights).",
        )


Loss = Callable[[Any, Any], "LossTerms | Tensor | Mapping[str, Tensor]"]
"""A user's loss: `(outputs, data) -> LossTerms`, an unreduced tensor with the rows first, or several of them by name, which are added."""


def as_terms(result: LossTerms | Tensor | Mapping[str, Tensor], rows: int) -> LossTerms:
    """Check what a loss returned.

    Raises:
        SettingError: it is already reduced, its first dimension is not the row, or its weights have another shape or a gradient.
    """
    terms = LossTerms(result) if isinstance(result, Tensor) else result
    if isinstance(terms, Mapping):
        terms = LossTerms.of(terms)
    if not isinstance(terms, LossTerms):
        raise SettingError(
            "loss",
            f"returned {type(result).__name__}, not a tensor, tensors by name or LossTerms",
            "Return the unreduced losses, rows first, or LossTerms.",
        )
    if terms.values.ndim == 0 or terms.values.shape[0] != rows:
        raise SettingError(
            "loss",
            f"returned shape {tuple(terms.values.shape)} for {rows} rows",
            "Return the unreduced losses, rows first (reduction='none'): Snugfit divides once over the whole "
            "window, so that micro-batches do not matter.",
        )
    if terms.weights is not None and terms.weights.shape != terms.values.shape:
        raise SettingError(
            "loss",
            f"returned values of shape {tuple(terms.values.shape)} with weights of shape "
            f"{tuple(terms.weights.shape)}",
            "Give each value its weight: weights.expand_as(values).",
        )
    if terms.weights is not None and terms.weights.requires_grad:
        raise SettingError(
            "loss",
            "got weights with a gradient in LossTerms, and the sum is divided by them as by constants",
            "Put what is learned into the values, and give weights.detach().",
        )
    return terms if terms.parts is None else replace(terms, parts=_checked_parts(terms))


_TAKEN = ("loss", "learning_rate", "loss_scale", "examples_per_second", "memory_bytes")
"""What every update logs by itself."""


def _checked_parts(terms: LossTerms) -> dict[str, Tensor]:
    """Return the parts outside of the graph."""
    assert terms.parts is not None
    for name, part in terms.parts.items():
        if not (isinstance(name, str) and name) or name in _TAKEN:
            raise SettingError(
                "loss",
                f"got a term with the name {name!r}, which {'is logged anyway' if name in _TAKEN else 'is none'}",
                "Give it another name.",
            )
        if not isinstance(part, Tensor) or part.shape != terms.values.shape:
            shape = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise SettingError(
                "loss",
                f"got values of shape {tuple(terms.values.shape)} with a part '{name}' of shape {shape}",
                "Give each part one number for each value: part.expand_as(values).",
            )
    return {name: part.detach() for name, part in terms.parts.items()}


@dataclass(frozen=True)
class Weighted:
    """A loss of several terms by name, added up with these factors; 1 where none is given.

    Factors that the loss itself has given to `LossTerms.of` are replaced.
    """

    loss: Loss
    factors: Mapping[str, float]

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        result = self.loss(outputs, data)
        parts = result.parts if isinstance(result, LossTerms) else result
        if not isinstance(parts, Mapping):
            raise SettingError(
                "loss_weights",
                f"gives weights to {', '.join(self.factors)}, and the loss has no terms by name",
                "Return them by name, {'first': values, 'second': values}, or remove loss_weights.",
            )
        for name in self.factors:
            if name not in parts:
                raise SettingError(
                    "loss_weights",
                    f"'{name}' is no term of the loss, which has {', '.join(parts)}",
                    nearest(name, parts),
                )
        return LossTerms.of(parts, self.factors, result.weights if isinstance(result, LossTerms) else None)

    def __getattr__(self, name: str) -> Any:  # what the loss says of itself, such as `couples_rows`
        if name.startswith("__") or name == "loss":
            raise AttributeError(name)
        return getattr(self.loss, name)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32 at least: bf16 cannot count beyond 256."""
    return torch.promote_types(dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in the type that terms are added up in."""
    return tensor if tensor.dtype is torch.float32 else tensor.to(wide_dtype(tensor.dtype))
