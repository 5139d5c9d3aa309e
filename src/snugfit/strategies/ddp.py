"""Each device has the whole model and its own rows; gradients are added up while backward goes on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor, nn

from snugfit.strategies.base import Strategy, summed_over_ranks

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


@dataclass
class DataParallel(Strategy):
    """Torch's DistributedDataParallel. Gradients are added up over ranks, not averaged.

    Args:
        bucket_view: whether gradients are views of the buckets, which saves their size in memory where a window is one
            micro-batch. What keeps a gradient beyond the next backward must copy it then.

    Source: Li et al. 2020, arXiv:2006.15704.
    """

    bucket_view: bool = False
    world_size: int = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model within a wrapper, under whose attribute `module` it is; all ranks start with rank 0's weights."""
        from torch.nn.parallel import DistributedDataParallel

        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=self.bucket_view)
        # the step divides sums by the weight of the whole window, once
        wrapped.register_comm_hook(None, _sum)
        return wrapped

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward: a micro-batch that is not the last exchanges nothing."""
        wrapped: DistributedDataParallel = model  # type: ignore[assignment]
        return nullcontext() if last else wrapped.no_sync()

    def add_up(self, values: list[Tensor]) -> list[Tensor]:
        """Sum scalars over all ranks."""
        return summed_over_ranks(values)


def _sum(state, bucket):  # torch compares annotations as objects, which postponed ones are not
    """DDP's own exchange without its division by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
