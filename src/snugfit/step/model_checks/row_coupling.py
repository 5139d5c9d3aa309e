"""Losses that compare rows without saying so, which are found before the first update."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.card import Family
from snugfit.errors import SettingError
from snugfit.step.micro_batch_sizes import coupling_techniques
from snugfit.step.model_checks.traceless import FAILURES, losses_of_rows
from snugfit.system.memory import is_out_of_memory, release_memory
from snugfit.system.rounding import in_float64
from snugfit.system.user_objects import describe
from snugfit.techniques import discover

if TYPE_CHECKING:
    from snugfit.step.step import Step

PART_OF_RUN = 0.01
"""Of all examples of a run, the part that may be tried; 2.5 forwards of each take as long as training on it, or less."""
FEW_ROWS = 8
"""Rows that are tried where windows are not split as yet."""
_LEAST_ROWS = 2
"""Rows that are tried in the shortest run: there is no neighbour in fewer."""
_FINE = 1e-3
"""The part of the allowed rounding that may be between two passes of the same kernels and shapes."""
_FINE_16_BIT = 0.1
"""The same where numbers have two to three digits: experts get other numbers of tokens, and round them otherwise."""
_FULL = 1e-3
"""The rounding that is allowed in float32."""
_FLOOR = 1e-3
"""A row's loss or weight counts as this large at least."""
_COARSE_NUMBERS = 0.1
"""The rounding of techniques that compute in few bits: what scales by the largest number of a tensor has some of all rows in each."""


class RowComparison(NamedTuple):
    """The losses of some rows beside others, compared on all ranks.

    Args:
        rows: in a pass.
        neighbours: the relative difference that other neighbours make; `alone`: that made by having none.
        allowed: what each may be by rounding.
        failed: why nothing could be compared; then the rest says nothing.
    """

    rows: int
    neighbours: float = 0.0
    alone: float = 0.0
    allowed: tuple[float, float] = (0.0, 0.0)
    failed: str = ""

    @property
    def coupled(self) -> bool:
        """Return whether the loss of a row depends on the rows beside it."""
        return self.neighbours > self.allowed[0] or self.alone > self.allowed[1]

    @property
    def message(self) -> str:
        """The outcome in a sentence."""
        if self.failed:
            return (
                "it could not be seen whether the loss of an example depends on the other examples of its micro-batch "
                f"({self.failed}). snugfit certify compares the gradients of micro-batches with those of the whole."
            )
        if self.coupled:
            return "the loss of an example depends on the other examples of its window, so windows stay whole where memory runs out."
        return (
            f"the losses of {self.rows} examples do not depend on each other, so splitting a window changes nothing (relative difference "
            f"{self.neighbours:.1g}, alone {self.alone:.1g}; rounding accounts for {self.allowed[0]:.1g} and {self.allowed[1]:.1g})."
        )

    @property
    def verdict(self) -> bool | None:
        """Return whether rows are coupled; None where nothing could be compared."""
        return None if self.failed else self.coupled


def is_split(step: Step, window: Batch) -> bool:
    """Return whether a window is computed in parts, so that no part sees all of its rows."""
    return step.strategy.world_size > 1 or (step.micro_batch is not None and step.micro_batch < window.rows)


def rows_to_compare(examples: int, ranks: int) -> int:
    """Return how many rows of a pass the comparison may take on each rank, so that it costs next to nothing.

    Args:
        examples: that a run trains on, in all its updates.
    """
    return max(_LEAST_ROWS, int(PART_OF_RUN * examples / ranks))


def compare_rows(step: Step, window: Batch, most: int) -> RowComparison | None:
    """Compute the losses of half of some rows beside the other half, beside copies of one row, and alone; without dropout.

    The rows are those of two micro-batches, so that a half is what training shows the loss at once, and the whole more than that. Where
    memory runs out, the rows of one are. All of the step's state is as before on return. All ranks call this for the same windows.

    Args:
        most: rows of a pass, at most; with fewer than two there is nothing to compare.
    Returns:
        None where the loss says itself that it compares rows, or a technique computes it over the whole window.
    """
    if step.couples_rows or step.seams.coupled or most < 2:
        return None
    strategy, window = step.strategy, replace(window, padded=0)
    micro_batch = min(step.micro_batch or window.rows, window.rows)
    sizes = [min(max(2, size), most) for size in (min(2 * micro_batch, window.rows), micro_batch)]
    for rows in sizes:
        try:
            comparison, short_of_memory = _compared(step, window, rows), False
        except FAILURES as error:
            short_of_memory = is_out_of_memory(error)
            why = "memory ran out" if short_of_memory else describe(error)
            comparison = RowComparison(rows, failed=why)
        if comparison.failed:
            release_memory(step.device)
        if not any(strategy.counts(int(short_of_memory))):
            break
    if any(
        strategy.counts(int(comparison.coupled and not comparison.failed))
    ):  # agreed, as forwards may gather weights
        comparison = _repeated(step, window, rows, comparison)
    of_ranks = [RowComparison(*each) for each in strategy.tell(tuple(comparison))]
    return max(of_ranks, key=lambda each: (each.coupled, bool(each.failed), each.neighbours))


def require_uncoupled(comparison: RowComparison, ranks: int) -> None:
    """Refuse a run that would show its loss parts of what it compares.

    Raises:
        SettingError: with the numbers and the remedy.
    """
    if comparison.failed or not comparison.coupled:
        return
    by_neighbours = comparison.neighbours > comparison.allowed[0]
    error = comparison.neighbours if by_neighbours else comparison.alone
    allowed = comparison.allowed[0 if by_neighbours else 1]
    whole = (
        "take the window whole on one device"
        if ranks > 1
        else "take the window whole (plan.micro_batch: null)"
    )
    raise SettingError(
        "loss",
        f"a row's loss differs by {error:.1g} with the rows beside it, and rounding accounts for {allowed:.1g}. "
        "The loss or the model compares rows, or divides by their number, so "
        f"{('ranks' if ranks > 1 else 'micro-batches')} would change what is learned",
        "Return a loss for each row by itself; or set couples_rows = True on the loss and add "
        f"{coupling_techniques()}; or {whole}.",
    )


def _compared(step: Step, window: Batch, rows: int) -> RowComparison:
    half = max(1, rows // 2)
    some = [min(row, window.rows - 1) for row in range(rows)]
    together, allowed, _ = losses_of_rows(step, window.select(some))
    with_copies, _, _ = losses_of_rows(step, window.select([*some[:half], *[0] * (rows - half)]))
    alone, _, _ = losses_of_rows(step, window.select(some[:half]))
    if not all(bool(torch.isfinite(each).all()) for each in together):
        return RowComparison(rows, failed="the loss is not finite")
    limits = (allowed * (_FINE if allowed <= _FULL else _FINE_16_BIT), allowed)
    if _computes_in_few_bits(step):
        limits = (max(allowed, _COARSE_NUMBERS),) * 2
    return RowComparison(rows, _apart(with_copies, together, half), _apart(alone, together, half), limits)


def _repeated(step: Step, window: Batch, rows: int, comparison: RowComparison) -> RowComparison:
    """Return `comparison`, or that nothing can be compared: a model with a generator of its own gives other losses in each pass."""
    some = window.select([min(row, window.rows - 1) for row in range(rows)])
    try:
        (once, *_), (again, *_) = (losses_of_rows(step, some) for _ in range(2))
    except FAILURES as error:
        return comparison._replace(failed=describe(error))
    if _apart(again, once, rows) <= comparison.allowed[0]:
        return comparison
    return comparison._replace(failed="the same rows have another loss in each pass, with dropout off")


def _apart(terms: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], rows: int) -> float:
    """Return how far the losses or the weights of the first rows are apart."""
    apart = []
    for one, other in zip(terms, others, strict=True):
        one, other = in_float64(one[:rows]), in_float64(other[:rows])
        # losses near zero are differences of larger numbers, and rounded as those are
        length = other.norm().clamp(min=_FLOOR * rows**0.5)
        apart.append(float(torch.nan_to_num((one - other).norm() / length, nan=torch.inf)))
    return max(apart)


def _computes_in_few_bits(step: Step) -> bool:
    known = discover()
    return any(known[name].card.family is Family.NUMERICS for name in step.seams.names if name in known)
