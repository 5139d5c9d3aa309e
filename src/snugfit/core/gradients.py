"""What a pass over the window found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from snugfit.core.scalar_reads import read_scalars


@dataclass(frozen=True, slots=True)
class Gradients:
    """The outcome of a pass; the gradients themselves are in `.grad`.

    `loss` is the weighted mean, `weight` the sum of weights over micro-batches and ranks, `nonfinite` is
    above 0 when the loss or a gradient is not finite. They are scalars on the device, from which nothing has
    been read; a weight that the host knows is a number.
    """

    loss: Tensor
    weight: Tensor | float
    nonfinite: Tensor

    def usable(self) -> bool:
        """Whether an update may be made of them: finite, and of something. Waits for the device."""
        _, weight, nonfinite = self.read()
        return weight > 0 and nonfinite == 0

    def read(self) -> tuple[float, float, float]:
        """Loss, weight and `nonfinite` as numbers, in one wait for the device."""
        if isinstance(self.weight, Tensor):
            loss, weight, nonfinite = read_scalars(
                [self.loss, self.weight, self.nonfinite], assume=[0.0, 1.0, 0.0]
            )
            return loss, weight, nonfinite
        loss, nonfinite = read_scalars([self.loss, self.nonfinite], assume=[0.0, 0.0])
        return loss, self.weight, nonfinite
