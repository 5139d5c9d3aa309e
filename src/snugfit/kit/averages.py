"""Averages of the weights beside a model, and other values in the model for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snugfit.kit.optimizers.foreach import copy_


class Averages:
    """A copy of each parameter that requires a gradient now, in float32 at least: in half precision an average stands still.

    A parameter that is frozen already, such as the base beside adapters, is its own average and costs nothing; whoever
    has it train later has it left out of the average.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._tensors = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in self._parameters.items()
        }

    def parameters(self) -> list[nn.Parameter]:
        """Return what is averaged."""
        return list(self._parameters.values())

    def tensors(self) -> list[Tensor]:
        """Return the averages themselves, in the order of `parameters`."""
        return list(self._tensors.values())

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._tensors)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load; a parameter that was frozen when the state was saved was its own average."""
        with torch.no_grad():
            for name, average in self._tensors.items():
                average.copy_(state.get(name, self._parameters[name]))


@contextmanager
def swapped(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Temporarily give each tensor the value beside it; on exit its own again, bit for bit.

    >>> weight = torch.tensor([0.1])
    >>> with swapped([weight], [torch.tensor([2.0])]):
    ...     print(weight)
    tensor([2.])
    >>> weight
    tensor([0.1000])
    """
    own = [tensor.detach().clone() for tensor in tensors]
    try:
        with torch.no_grad():
            copy_(tensors, values)
        yield
    finally:
        with torch.no_grad():
            copy_(tensors, own)
