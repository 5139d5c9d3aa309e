"""Parameters that get gradients and belong to no optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.watch_log import Recorder

COMPARED = 64


class Outsiders:
    """Counts the updates in which such parameters have gradients, and sees whether the script moves them by itself."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._strays: list[weakref.ref[nn.Parameter]] = []
        self._start: dict[int, Tensor] = {}

    def note(self, root: int, module: nn.Module) -> None:
        """Note a module that was called inside of a model, if its parameters are not the model's own. In a plain list they are not."""
        known = self.recorder.parameters
        for name, parameter in module._parameters.items():
            if isinstance(parameter, nn.Parameter) and self.recorder.number(parameter) not in known:
                self.recorder.parameter(parameter, f"{type(module).__name__}.{name}").model = root
                self._strays.append(weakref.ref(parameter))

    def count_strays(self, used: set[int]) -> None:
        """After a step: the parameters that belong to no model."""
        self.count([each for reference in self._strays if (each := reference()) is not None], used)

    def count(self, parameters: Iterable[nn.Parameter], used: set[int]) -> None:
        """After a step: those of the parameters with a gradient that are not in `used`."""
        for parameter in parameters:
            number = self.recorder.number(parameter)
            if number in used or not parameter.requires_grad or parameter.grad is None:
                continue
            seen = self.recorder.parameter(parameter)
            seen.outside += 1
            seen.frozen_at_build = number in self.recorder.frozen_at_build
            now = parameter.detach().reshape(-1)[:COMPARED]
            if number not in self._start:
                self._start[number] = now.clone()
            elif self.recorder.detailed:
                seen.moved_outside = seen.moved_outside or not torch.equal(self._start[number], now)
