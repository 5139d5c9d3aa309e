"""Ghost batch norm: batch statistics of small groups of rows, whatever the micro-batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Sharing, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.placement import host_copy

_ON_RANKS = (
    "each device has statistics of its own rows already, and running ones that follow the groups of all of them in turn would differ. "
    "Remove it, and choose plan.micro_batch as the group."
)


def ghosts(rows: int, size: int) -> list[range]:
    """Cut rows into groups of neighbours; a single row that is left over joins the last group, as it has no statistics.

    >>> ghosts(7, 3), ghosts(8, 3)
    ([range(0, 3), range(3, 7)], [range(0, 3), range(3, 6), range(6, 8)])
    """
    ends = [*range(size, rows - 1, size), rows]
    return [range(start, end) for start, end in pairwise([0, *ends])]


@dataclass
class Groups:
    """The size of groups, and the rows of the micro-batch that is computed, None where nobody says: shared by all norms of a model."""

    size: int
    rows: int | None = field(default=None, compare=False)


class GhostNorm(_BatchNorm):
    """A batch norm of torch's that normalises groups of rows each by its own statistics while it trains."""

    groups: Groups
    of_groups = True

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as torch's does, group after group.

        Raises:
            SettingError: the first dimension is not the row.
        """
        plain = super().forward
        if not self.training:
            return plain(input)
        rows, given = input.shape[0], self.groups.rows
        if given is not None and given != rows:
            raise SettingError(
                "ghost_batch_norm",
                f"a batch norm works on {tuple(input.shape)} for {given} rows, so its first dimension is not the row",
                "Remove it.",
            )
        return torch.cat([plain(input[each.start : each.stop]) for each in ghosts(rows, self.groups.size)])


class GhostNorm1d(GhostNorm, nn.BatchNorm1d):
    """Ghost batch norm of rows of numbers, or of numbers along one dimension."""


class GhostNorm2d(GhostNorm, nn.BatchNorm2d):
    """Ghost batch norm of images."""


class GhostNorm3d(GhostNorm, nn.BatchNorm3d):
    """Ghost batch norm of volumes."""


_GHOSTS: dict[type[nn.Module], type[GhostNorm]] = {
    nn.BatchNorm1d: GhostNorm1d,
    nn.BatchNorm2d: GhostNorm2d,
    nn.BatchNorm3d: GhostNorm3d,
}
_STOCK = {ghost: stock for stock, ghost in _GHOSTS.items()}


def with_stock_norms(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose batch norms are torch's own, as which they evaluate."""
    copied = host_copy(model)
    for norm in copied.modules():
        if isinstance(norm, GhostNorm):
            del norm.groups
            norm.__class__ = _STOCK[type(norm)]  # type: ignore[assignment]
    return copied


@dataclass(frozen=True)
class GhostBatchNorm(Technique):
    """Let batch norms take the statistics of groups of neighbouring rows, in place of those of a micro-batch."""

    rows: int = 32

    card: ClassVar[Card] = Card(
        name="ghost_batch_norm",
        summary="Batch norm by small groups of rows, so that large windows generalise and micro-batches do not matter.",
        family=Family.LEARNING,
        source="Hoffer et al. 2017, arXiv:1705.08741, algorithm 1",
        seams=("batch", "modules", "export"),
        stages=(Stage.LAYER, Stage.GROUP, Stage.COMPUTE),
        kind=Kind.NUMBERS,
        refuses={Sharing.COPIES: _ON_RANKS, Sharing.SHARDS: _ON_RANKS},
        cost="a call of each batch norm for every group, in place of one",
        use_when="nets with batch norm in large windows; or whose micro-batch is to be a matter of memory alone",
    )

    def __post_init__(self) -> None:
        self.require("rows", self.rows >= 2, "at least 2: one row has no statistics")

    @classmethod
    def example(cls) -> Self:
        return cls(rows=2)

    @property
    def together(self) -> int:
        return self.rows

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        norms = [module for module in model.modules() if type(module) in _GHOSTS]
        if not norms:
            others = sorted(
                {type(module).__name__ for module in model.modules() if isinstance(module, _BatchNorm)}
            )
            has = f"those it has are of another kind: {', '.join(others)}" if others else "it has none"
            raise SettingError(
                "ghost_batch_norm",
                f"has nothing to change: the model has no nn.BatchNorm1d, 2d or 3d; {has}",
                "Remove it.",
            )
        groups = Groups(self.rows)
        for norm in norms:
            norm.__class__ = _GHOSTS[type(norm)]
            norm.groups = groups  # type: ignore[assignment]
        return model

    def seams(self, context: Context) -> Seams:
        norms = [module for module in context.model.modules() if isinstance(module, GhostNorm)]

        def batch(window: Batch, _moment: Moment) -> Batch:
            return replace(window, group=math.lcm(window.group, self.rows))

        @contextmanager
        def modules(part: Batch) -> Iterator[None]:
            for norm in norms[:1]:  # all have the same
                norm.groups.rows = part.rows
            try:
                yield
            finally:
                for norm in norms[:1]:
                    norm.groups.rows = None

        return Seams(batch=batch, modules=modules, export=with_stock_norms)
