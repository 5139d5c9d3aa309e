"""Each device has the whole model and its own rows; gradients are added up while backward goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.loss_terms import LossTerms
from snugfit.strategies.base import SeveralRanks

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel


@dataclass
class DataParallel(SeveralRanks):
    """Torch's DistributedDataParallel. Gradients are added up over ranks, not averaged.

    It is put around the computation of the loss, not around the model: weights that the loss uses count too, and the model
    keeps its names. Weights that a micro-batch does not reach are no error.

    Args:
        bucket_view: whether gradients are views of the buckets, which saves their size in memory where a window is one
            micro-batch. What keeps a gradient beyond the next backward must copy it then.

    Source: Li et al. 2020, arXiv:2006.15704.
    """

    bucket_view: bool = False
    sharing: Sharing | None = field(default=Sharing.COPIES, init=False)
    _around: DistributedDataParallel | None = field(default=None, init=False, repr=False)
    _exchange: Exchange | None = field(default=None, init=False, repr=False)

    def exchange_by(self, exchange: Exchange) -> None:
        """Before `wrap`: add gradients up in this way."""
        self._exchange = exchange

    def wrap(self, model: nn.Module) -> nn.Module:
        """Ready the model, which stays as it is; all ranks start with rank 0's weights and buffers."""
        from torch.nn.parallel import DistributedDataParallel

        self._around = DistributedDataParallel(
            _Loss(model),
            gradient_as_bucket_view=self.bucket_view,
            find_unused_parameters=True,
            # each rank's layers see its own rows; what they keep of them is averaged once a window
            **_no_buffers_in_forward(DistributedDataParallel),
        )
        self.take_first_([*model.buffers()])
        # the step divides sums by the weight of the whole window, once
        self._around.register_comm_hook(self._exchange, _sum if self._exchange is None else _sum_of_means)
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward: a micro-batch that is not the last exchanges nothing."""
        assert self._around is not None
        return nullcontext() if last else self._around.no_sync()

    def run(self, compute: Callable[[], LossTerms]) -> LossTerms:
        """Forward and loss of a micro-batch, whose backward follows."""
        assert self._around is not None
        terms: list[LossTerms] = []

        def values() -> Tensor:
            terms.append(compute())
            return terms[0].values

        through = self._around(values)
        return replace(terms[0], values=through)


class _Loss(nn.Module):
    """A model under a forward that computes whatever it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()


def _no_buffers_in_forward(wrapper: type) -> dict[str, Any]:
    """Return the argument for it: torch has renamed it."""
    parameters = inspect.signature(wrapper).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in parameters else "broadcast_buffers": False}


def _sum(_state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations as objects, which postponed ones are not
    """DDP's own exchange without its division by the number of ranks."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _sum_of_means(exchange, bucket):  # type: ignore[no-untyped-def]
    """Return what an exchange of means comes to without their division by the number of ranks."""
    ranks = dist.get_world_size()
    return exchange.mean(bucket).then(lambda done: done.value().mul_(ranks))
