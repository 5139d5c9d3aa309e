"""What the step needs to know of the other devices; one device needs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn


class Strategy:
    """One process, one device. Strategies for several override what differs."""

    world_size: int = 1
    rank: int = 0
    shards: bool = False
    """Whether `wrap` spreads the weights over devices, to which it moves them: none has the model whole."""

    buckets: Sequence[Tensor] = ()
    """Tensors that it keeps to exchange gradients in, where the library behind it shows them."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Make the model a distributed one."""
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch; gradients are exchanged on the last only."""
        return _NOTHING

    def add_up(self, values: list[Tensor]) -> list[Tensor]:
        """Sum scalars over all ranks."""
        return values


def summed_over_ranks(values: list[Tensor]) -> list[Tensor]:
    """Each scalar's sum over all ranks, in one exchange."""
    stacked = torch.stack(values)
    torch.distributed.all_reduce(stacked)
    return list(stacked)


_NOTHING = nullcontext()
