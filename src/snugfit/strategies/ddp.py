"""Each device has the whole model and its own rows; gradients are added up while backward goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.loss_terms import LossTerms
from snugfit.errors import SettingError
from snugfit.strategies.base import SeveralRanks
from snugfit.system.nothing import NOTHING

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

FIRST_BUCKET_BYTES = 2**20
"""Bytes that fill DDP's first bucket, which is small so that it can be sent early; later ones have more."""


@dataclass
class DataParallel(SeveralRanks):
    """Torch's DistributedDataParallel. Gradients are added up over ranks, not averaged.

    It is put around the computation of the loss, not around the model: weights that the loss uses count too, and the model
    keeps its names. Weights that a micro-batch does not reach are no error.

    A model whose gradients fit DDP's first bucket is not wrapped: DDP would send that bucket when the backward is over, and a message with
    which weights were reached behind it. Here both are one message, in which the loss travels too.

    Args:
        bucket_view: whether gradients are views of the buckets, which saves their size in memory where a window is one
            micro-batch. What keeps a gradient beyond the next backward must copy it then.
        at_once_bytes: the most bytes of gradients that are sent in one message behind the backward, without DDP.

    Source: Li et al. 2020, arXiv:2006.15704.
    """

    bucket_view: bool = False
    at_once_bytes: int = FIRST_BUCKET_BYTES
    sharing: Sharing | None = field(default=Sharing.COPIES, init=False)
    _around: DistributedDataParallel | None = field(default=None, init=False, repr=False)
    _exchange: Exchange | None = field(default=None, init=False, repr=False)

    def exchange_by(self, exchange: Exchange) -> None:
        """Add gradients up in this way; called before `wrap`."""
        self._exchange = exchange

    def wrap(self, model: nn.Module) -> nn.Module:
        """Ready the model, which stays as it is; all ranks start with rank 0's weights and buffers."""
        from torch.nn.parallel import DistributedDataParallel

        trained = [each for each in model.parameters() if each.requires_grad]
        as_they_are = self._exchange is None and not self.bucket_view
        if as_they_are and sent_at_once(model, sum(each.nbytes for each in trained), self.at_once_bytes):
            self._check_alike(model)
            self.take_first_([*model.parameters(), *model.buffers()])
            self.copies = trained
            return model
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

    def _check_alike(self, model: nn.Module) -> None:
        """Refuse, as DDP does, to add up gradients of different models.

        Raises:
            SettingError: names the rank.
        """
        shapes = self.tell([tuple(each.shape) for each in model.parameters()])
        for rank, own in enumerate(shapes):
            if own != shapes[0]:
                raise SettingError(
                    "model",
                    f"has parameters of other shapes on rank {rank} ({len(own)} of them) than on rank 0 ({len(shapes[0])})",
                    "Make the same model on all ranks.",
                )

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Temporarily accumulate, around forward and backward: a micro-batch that is not the last exchanges nothing."""
        return NOTHING if last or self._around is None else self._around.no_sync()

    def run(self, compute: Callable[[], LossTerms]) -> LossTerms:
        """Forward and loss of a micro-batch, whose backward follows."""
        if self._around is None:
            return compute()
        terms: list[LossTerms] = []

        def values() -> Tensor:
            terms.append(compute())
            return terms[0].values

        through = self._around(values)
        return replace(terms[0], values=through)


def sent_at_once(model: nn.Module, gradients: int, at_once_bytes: int, plain: type = nn.Parameter) -> bool:
    """Return whether so many bytes of gradients are sent in one message, without DDP: they are few, and weights are of a plain class."""
    return gradients <= at_once_bytes and all(type(each) is plain for each in model.parameters())


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
