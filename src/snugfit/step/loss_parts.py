"""Named parts of a loss: the mean of each over the rows of a window on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from snugfit.core.loss_terms import LossTerms
from snugfit.errors import SettingError
from snugfit.strategies.base import Strategy
from snugfit.system.device_copies import scalar_like


@dataclass
class LossParts:
    """The sums of a window's first pass with gradients, as the window's loss is of it; later passes are over other weights.

    `passes` counts those over the rows at hand.
    """

    passes: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _weight: Tensor | float = 0.0
    _agreed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the loss of the window has any."""
        return bool(self._sums)

    def begin_window(self) -> None:
        """Forget what was added."""
        self.passes, self._sums, self._weight = 0, {}, 0.0

    def add(self, terms: LossTerms, number: int = 1) -> None:
        """Add the parts of some rows, in the pass of this number; in a later one, and without gradients, nothing."""
        if self.passes != number or not torch.is_grad_enabled():
            return
        sums = terms.part_sums()
        if self._sums and self._sums.keys() != sums.keys():
            raise SettingError(
                "loss",
                f"has the parts {', '.join(sums)} in one micro-batch and {', '.join(self._sums)} in another",
                "Give all of them each time: zeros where one does not count.",
            )
        self._sums = {name: self._sums[name] + each if self._sums else each for name, each in sums.items()}
        self._weight = terms.weight() + self._weight

    def over_ranks(self, strategy: Strategy) -> Mapping[str, Tensor]:
        """Return the mean of each part over the window by its name; all ranks call this."""
        names = tuple(self._sums)
        if names != self._agreed:  # asked once: a rank that changes them later has raised
            for others in strategy.tell(names):
                if others != names:
                    raise SettingError(
                        "loss",
                        f"has the parts {', '.join(others)} on one rank and {', '.join(names)} on another",
                        "Give the same ones on all, in the same order.",
                    )
            self._agreed = names
        values = list(self._sums.values())
        weight = scalar_like(self._weight, values[0])
        *sums, weight = strategy.add_up([*values, weight])
        divisor = torch.where(weight > 0, weight, 1.0)
        return {name: each / divisor for name, each in zip(names, sums, strict=True)}
