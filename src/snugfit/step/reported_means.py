"""Means over a window's rows on all ranks that an update tells beside its loss: the loss's named parts, and what a forward measures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from snugfit.core.loss_terms import LossTerms
from snugfit.errors import SettingError
from snugfit.strategies.base import Strategy
from snugfit.system.device_copies import scalar_like


class Measuring(Protocol):
    """A forward that measures what it gives."""

    def measured(self, outputs: Any, data: Any) -> Tensor:
        """Return sums over the rows of a micro-batch, shape (n,)."""
        ...

    def metrics(self, sums: Tensor) -> Mapping[str, Tensor]:
        """Return metrics by name, of such sums over a window."""
        ...


class ReportedMeans:
    """The sums of a window's first pass with gradients, as the window's loss is of it; later passes are over other weights, or some rows.

    Args:
        forward: of the step; one that is not `Measuring` has nothing added.
    """

    def __init__(self, forward: Any) -> None:
        measures = hasattr(forward, "measured") and hasattr(forward, "metrics")
        self._measuring: Measuring | None = forward if measures else None
        self._measured: Tensor | None = None
        self._parts: dict[str, Tensor] = {}
        self._weight: Tensor | float = 0.0
        self._passes = 0
        self._agreed: tuple[str, ...] = ()

    def begin_window(self) -> None:
        """Forget what was added."""
        self._passes, self._measured, self._parts, self._weight = 0, None, {}, 0.0

    def begin_rows(self) -> None:
        """Begin rows of the window that no pass has been over."""
        self._passes = 0

    def begin_pass(self) -> None:
        """Begin a pass with gradients."""
        self._passes += 1

    def add_parts(self, terms: LossTerms, number: int = 1) -> None:
        """Add the parts of the loss of some rows, in the pass of this number; in a later one, and without gradients, nothing."""
        if not terms.parts or self._passes != number or not torch.is_grad_enabled():
            return
        sums = terms.part_sums()
        if self._parts and self._parts.keys() != sums.keys():
            raise SettingError(
                "loss",
                f"has the parts {', '.join(sums)} in one micro-batch and {', '.join(self._parts)} in another",
                "Give all of them each time: zeros where one does not count.",
            )
        self._parts = {name: self._parts[name] + each if self._parts else each for name, each in sums.items()}
        self._weight = terms.weight() + self._weight

    def add_outputs(self, outputs: Any, data: Any, counts: bool) -> None:
        """Measure a micro-batch; one that does not count adds nothing."""
        if self._measuring is None or self._passes != 1 or not torch.is_grad_enabled():
            return
        with torch.no_grad():
            own = self._measuring.measured(outputs, data) * float(counts)
            self._measured = own if self._measured is None else self._measured + own

    def with_means(self, metrics: Mapping[str, Tensor], strategy: Strategy) -> Mapping[str, Tensor]:
        """Return the metrics of techniques with the means of the window by name; all ranks call this.

        Raises:
            SettingError: a part of the loss has the name of one of them, or ranks have other parts.
        """
        if self._parts:
            parts = self._means_of_parts(strategy)  # before any rank leaves: the others wait in the exchange
            if both := next((name for name in parts if name in metrics), None):
                raise SettingError(
                    "loss",
                    f"got a term with the name '{both}', which a technique logs",
                    "Give it another name.",
                )
            metrics = {**metrics, **parts}
        if self._measuring is not None and self._measured is not None:
            sums = torch.stack(strategy.add_up(list(self._measured)))
            metrics = {**metrics, **self._measuring.metrics(sums)}
        return metrics

    def _means_of_parts(self, strategy: Strategy) -> dict[str, Tensor]:
        names = tuple(self._parts)
        if names != self._agreed:  # asked once: a rank that changes them later has raised
            for others in strategy.tell(names):
                if others != names:
                    raise SettingError(
                        "loss",
                        f"has the parts {', '.join(others)} on one rank and {', '.join(names)} on another",
                        "Give the same ones on all, in the same order.",
                    )
            self._agreed = names
        values = list(self._parts.values())
        weight = scalar_like(self._weight, values[0])
        *sums, weight = strategy.add_up([*values, weight])
        divisor = torch.where(weight > 0, weight, 1.0)
        return {name: each / divisor for name, each in zip(names, sums, strict=True)}
