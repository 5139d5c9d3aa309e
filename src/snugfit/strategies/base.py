"""The base of strategies: the step's view of other devices, of which one device needs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.gradient_exchange import Exchange
from snugfit.core.loss_terms import LossTerms
from snugfit.strategies.gradient_sums import add_up_gradients_
from snugfit.system.nothing import NOTHING


class Strategy:
    """The strategy of one process with one device. Strategies for several override what differs.

    Ranks call what exchanges anything in the same order, or wait for each other for ever.
    """

    world_size: int = 1
    rank: int = 0
    sharing: Sharing | None = None
    """The way in which devices share the model; None where there is one."""

    buckets: Sequence[Tensor] = ()
    """Tensors that it keeps to exchange gradients in, where the library behind it shows them."""

    device: torch.device | None = None
    """The device that a wrapped model computes on, where its weights wait elsewhere; None where they are there."""

    copies: Sequence[nn.Parameter] = ()
    """Weights that each rank has whole, and whose gradients the backward leaves those of the rank."""

    @property
    def shards(self) -> bool:
        """Return whether `wrap` spreads the weights over devices, to which it moves them: none has the model whole."""
        return self.sharing is Sharing.SHARDS

    def exchange_by(self, exchange: Exchange) -> None:
        """Add gradients up in this way; called before `wrap`."""

    def part(self, weight: Tensor) -> Tensor:
        """Return what this rank will have of a weight once `wrap` has spread the model, in memory of its own."""
        return weight

    def wrap(self, model: nn.Module) -> nn.Module:
        """Make the model a distributed one, in place: its names stay."""
        return model

    def spread(self, model: nn.Module) -> nn.Module:
        """Spread a model that does not train as `wrap` spreads the one that does, in place."""
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[object]:
        """Temporarily accumulate, around forward and backward of a micro-batch; gradients are exchanged on the last only."""
        return NOTHING

    def score(self, model: nn.Module) -> AbstractContextManager[object]:
        """Temporarily score, around forwards that no backward follows, and what is made of their outputs."""
        return NOTHING

    def run(self, compute: Callable[[], LossTerms]) -> LossTerms:
        """Forward and loss of a micro-batch, whose backward follows."""
        return compute()

    def add_up(self, values: list[Tensor]) -> list[Tensor]:
        """Sum scalars over all ranks."""
        return values

    def add_up_copies_(self, scalars: Sequence[Tensor] = ()) -> list[Tensor]:
        """Add up the gradients of `copies` over ranks, after the last backward of a window; returns the sums of scalars of one type."""
        return list(scalars)

    def add_up_shards(self, value: Tensor) -> Tensor:
        """Sum a scalar of this rank's gradients over the ranks that have other ones."""
        return value

    def tell(self, value: Any) -> list[Any]:
        """Return what each rank says, in their order."""
        return [value]

    def any_in_forward(self, flag: bool) -> bool:
        """Return whether any rank says so, of those that make each forward together; a rank that computes by itself decides by itself."""
        return flag

    def counts(self, count: int) -> tuple[int, ...]:
        """Return a number of the host's on each rank, in their order."""
        return self.all_counts(count)[0]

    def all_counts(self, *counts: int) -> list[tuple[int, ...]]:
        """Return each of some numbers of the host's on each rank, in their order, in one exchange."""
        return [(count,) for count in counts]

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, of which each has so many, in their order; gradients flow to this rank's own.

        Raises:
            ValueError: they have not one shape.
        """
        return rows

    def average_(self, buffers: Sequence[Tensor]) -> None:
        """Give each buffer its mean over ranks, in place."""

    def take_first_(self, tensors: Sequence[Tensor]) -> None:
        """Give each tensor the first rank's numbers, in place."""

    def whole(self, model: nn.Module, folder: Path) -> nn.Module | None:
        """Return the model with all of its weights, on the first rank, which may use `folder` for them meanwhile; None on the others."""
        return model if self.rank == 0 else None


@dataclass
class SeveralRanks(Strategy):
    """The base of strategies for several processes: exchanges by torch.distributed in its default group."""

    world_size: int = field(init=False)
    rank: int = field(init=False)

    def __post_init__(self) -> None:
        self.world_size, self.rank = dist.get_world_size(), dist.get_rank()

    @property
    def pretended(self) -> bool:
        """Return whether the other ranks are not there, as in the planner's dry run: they do as this one, and nothing is delivered."""
        return dist.get_backend() == "fake"

    def add_up(self, values: list[Tensor]) -> list[Tensor]:
        """Return each scalar's sum over all ranks, in one exchange."""
        stacked = torch.stack(values)
        dist.all_reduce(stacked)
        return list(stacked)

    def add_up_copies_(self, scalars: Sequence[Tensor] = ()) -> list[Tensor]:
        """Add up the gradients of `copies` over ranks, and the scalars in the same message where it has their type."""
        sums = add_up_gradients_(self.copies, scalars)
        return sums if sums is not None else self.add_up([*scalars]) if scalars else []

    def tell(self, value: Any) -> list[Any]:
        """Return what each rank says, in their order."""
        if self.pretended:
            return [value] * self.world_size
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def all_counts(self, *counts: int) -> list[tuple[int, ...]]:
        """Return each of some numbers of the host's on each rank, in their order, in one exchange: a quarter of the time of what may be told."""
        if self.pretended:
            return [(count,) * self.world_size for count in counts]
        of_ranks = torch.empty(self.world_size, len(counts), dtype=torch.int64)
        dist.all_gather(list(of_ranks.unbind()), torch.tensor(counts))
        return [tuple(column) for column in of_ranks.T.tolist()]

    def join(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, of which each has so many, in their order; gradients flow to this rank's own."""
        if len(shapes := {*self.tell(tuple(rows.shape[1:]))}) > 1:
            raise ValueError(f"on the ranks a row has the shapes {' and '.join(map(str, sorted(shapes)))}")
        sent = rows.new_zeros(max(counts), *rows.shape[1:])
        sent[: rows.shape[0]] = rows.detach()
        gathered = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(gathered, sent)
        parts = [part[:count] for part, count in zip(gathered, counts, strict=True)]
        if self.pretended and not rows.is_floating_point():  # masks and lengths, which a dry run has to know
            parts = [rows[:count] for count in counts]
        parts[self.rank] = rows[: counts[self.rank]]
        return torch.cat(parts)

    def average_(self, buffers: Sequence[Tensor]) -> None:
        """Give each buffer its mean over ranks, in place, in one exchange for all buffers of a type and device."""
        for kind in {(buffer.dtype, buffer.device): None for buffer in buffers}:
            alike = [buffer for buffer in buffers if (buffer.dtype, buffer.device) == kind]
            if len(alike) == 1 and alike[0].is_contiguous():
                dist.all_reduce(alike[0])
                alike[0].div_(self.world_size)
                continue
            sums = torch.cat([buffer.reshape(-1) for buffer in alike])
            dist.all_reduce(sums)
            sums.div_(self.world_size)
            for buffer, part in zip(alike, sums.split([buffer.numel() for buffer in alike]), strict=True):
                buffer.copy_(part.view(buffer.shape))

    @torch.no_grad()
    def take_first_(self, tensors: Sequence[Tensor]) -> None:
        """Give each tensor the first rank's numbers, in place, in one exchange for all tensors of a device."""
        if self.pretended:
            return
        for device in {tensor.device: None for tensor in tensors}:
            there = [tensor for tensor in tensors if tensor.device == device and tensor.numel()]
            if not there:
                continue
            # as bytes: not every backend sends every type
            sent = torch.cat([tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in there])
            dist.broadcast(sent, 0)
            for tensor, part in zip(there, sent.split([tensor.nbytes for tensor in there]), strict=True):
                # memory of its own begins where any type may
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))
