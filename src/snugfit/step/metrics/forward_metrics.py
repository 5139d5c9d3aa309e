"""Metrics of an update that a forward makes of its own outputs, over the rows of the window on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from snugfit.strategies.base import Strategy


class Measuring(Protocol):
    """A forward that measures what it gives."""

    def measured(self, outputs: Any, data: Any) -> Tensor:
        """Return sums over the rows of a micro-batch, shape (n,)."""
        ...

    def metrics(self, sums: Tensor) -> Mapping[str, Tensor]:
        """Return metrics by name, of such sums over a window."""
        ...


@dataclass
class ForwardMetrics:
    """The sums of a window's first pass with gradients; later passes are over other weights, or some rows."""

    forward: Measuring
    _sums: Tensor | None = None
    _passes: int = 0

    @classmethod
    def of(cls, forward: Any) -> ForwardMetrics | None:
        """Return those of a forward; None where it does not measure."""
        return cls(forward) if hasattr(forward, "measured") and hasattr(forward, "metrics") else None

    def begin_window(self) -> None:
        """Forget what was measured."""
        self._sums, self._passes = None, 0

    def begin_rows(self) -> None:
        """Begin rows of the window that no pass has been over."""
        self._passes = 0

    def begin_pass(self) -> None:
        """Begin a pass with gradients."""
        self._passes += 1

    def add(self, outputs: Any, data: Any, counts: bool) -> None:
        """Measure a micro-batch; one that does not count adds nothing."""
        if self._passes != 1 or not torch.is_grad_enabled():
            return
        with torch.no_grad():
            own = self.forward.measured(outputs, data) * float(counts)
            self._sums = own if self._sums is None else self._sums + own

    def over_ranks(self, strategy: Strategy) -> Mapping[str, Tensor]:
        """Return the metrics of the window; all ranks call this."""
        if self._sums is None:
            return {}
        return self.forward.metrics(torch.stack(strategy.add_up(list(self._sums))))
