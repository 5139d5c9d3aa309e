"""Averages of the weights beside a model, and other values in the model for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from snugfit.core.foreach import copy_


class Averages:
    """A copy of each parameter by its name, in float32 at least: what is averaged in half precision stands still."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {
            name: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for name, p in model.named_parameters()
        }

    def tensors(self) -> list[Tensor]:
        """The averages themselves, in the order of the model's parameters."""
        return list(self._tensors.values())

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self._tensors)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, average in self._tensors.items():
            average.copy_(state[name])


@contextmanager
def swapped(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Within, each tensor has the value beside it; on exit its own again, bit for bit.

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
