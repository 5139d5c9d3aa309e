"""Online hard example mining: learn from the examples with the largest losses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.gradients import Gradients
from snugfit.core.loss_terms import LossTerms
from snugfit.core.scalar_reads import read
from snugfit.core.technique import Card, Compute, Context, Family, GradientsOf, Seams, Stage, Technique
from snugfit.kit.batch_norm import has_batch_norm


def hardest(terms: LossTerms, fraction: float, at_least: int = 1) -> Tensor:
    """Return rows with the largest losses, in ascending order of the row.

    Args:
        terms: one loss and one weight a row; rows of weight 0 come last.
        fraction: of the rows, rounded up.
        at_least: rows that are kept where there are that many; batch norm needs two.
    Returns:
        Row numbers, int64, shape (ceil(fraction * rows),) or a little more.

    >>> hardest(LossTerms(torch.tensor([0.1, 3.0, 2.0, 0.5])), fraction=0.5)
    tensor([1, 2])
    """
    losses = (
        terms.values if terms.weights is None else terms.values.masked_fill(terms.weights <= 0, -math.inf)
    )
    count = math.ceil(round(fraction * losses.shape[0], 9))  # 0.07 * 100 is a little more than 7
    return torch.argsort(losses, descending=True, stable=True)[: max(count, at_least)].sort().values


@dataclass(frozen=True)
class HardExamples(Technique):
    """Forward over the whole window, then forward and backward over the hardest examples only."""

    fraction: float = 0.5

    card: ClassVar[Card] = Card(
        name="hard_examples",
        summary="Ranks the whole window by its losses and trains on the hardest part of it.",
        aliases=("selective backprop", "online hard example mining", "OHEM"),
        family=Family.LEARNING,
        source="Shrivastava et al. 2016, arXiv:1604.03540; Loshchilov & Hutter 2016, arXiv:1511.06343",
        seams=("gradients",),
        stages=(Stage.SELECT,),
        cost="one more forward of the window; forward and backward of the kept part only",
        use_when="most examples are easy and the labels are clean",
    )

    def __post_init__(self) -> None:
        self.require("fraction", 0 < self.fraction <= 1, "in (0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(
            fraction=0.8
        )  # at 0.6 of the laws' windows two losses are so close that fp16 decides which is the harder one

    def seams(self, context: Context) -> Seams:
        at_least = 2 if has_batch_norm(context.model) else 1

        def gradients(next: GradientsOf) -> GradientsOf:
            def of_the_hardest(compute: Compute) -> Gradients:
                terms = compute.terms()
                rows = hardest(terms, self.fraction, at_least)
                part_gradients = next(compute.select(read(rows, assume=_longest(compute, rows.shape[0]))))
                # batch norm has seen the whole window: a row that is left out must not be worse than those kept
                return replace(
                    part_gradients, nonfinite=part_gradients.nonfinite + ~terms.weighted_sum().isfinite()
                )

            return of_the_hardest

        return Seams(gradients=gradients)


def _longest(compute: Compute, count: int) -> list[int]:
    lengths = compute.batch.lengths or (0,) * compute.batch.rows
    return sorted(sorted(range(compute.batch.rows), key=lambda row: -lengths[row])[:count])
