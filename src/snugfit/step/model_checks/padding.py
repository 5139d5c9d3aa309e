"""Padding, which is cut from micro-batches only where the model computes the same without it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.scalar_reads import is_fake, read
from snugfit.core.tree import leaves
from snugfit.step.model_checks.traceless import FAILURES, Outputs, losses_of_rows, relative_distance
from snugfit.step.step_views import PaddedStep
from snugfit.system.memory import is_out_of_memory
from snugfit.system.user_objects import describe

_NO_ROW = 1 << 62
"""The length of the shortest row where there is none."""


class Finding(NamedTuple):
    """The comparison of rows with and without their padding on one rank.

    Args:
        error: the largest relative difference; None where the numbers were not finite, or memory ran out.
        allowed: the difference that rounding accounts for.
        where: what differs the most, or the error of a model that cannot do without padding.
    """

    error: float | None
    allowed: float
    where: str

    @property
    def same(self) -> bool:
        return self.error is not None and self.error <= self.allowed


class Padding:
    """Decides once whether padding is cut, by a comparison on the first window in which it would be.

    Args:
        allowed: whether it may be cut at all.
    """

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed
        self.cut: bool | None = None if allowed else False
        """The decision; None before there was padding to cut."""
        self.message = ""
        """The decision and its reason in a sentence; empty before it is made here."""

    def settled(self, step: PaddedStep, window: Batch) -> Batch:
        """Return the window as its micro-batches are to be made from it: marked as not to be cut where that is not known to be right.

        All ranks call this for the same windows.
        """
        if window.lengths is None:
            return window
        if self.cut is None:
            if any(is_fake(leaf) for leaf in leaves(window.data)):  # nothing can be compared
                return window if _is_stock(step) else replace(window, padded=0)
            shortest = min(window.lengths, default=_NO_ROW) if window.padded else _NO_ROW
            widths, lengths = step.strategy.all_counts(window.padded, shortest)
            width = max(widths)
            if min(lengths) >= width:
                return window
            self._decide(step, window, window.lengths, width)
        return self.applied(window)

    def applied(self, window: Batch) -> Batch:
        """Return the window as far as it is decided: one of which nothing is known keeps its padding."""
        return window if self.cut or not window.padded else replace(window, padded=0)

    def _decide(self, step: PaddedStep, window: Batch, lengths: tuple[int, ...], width: int) -> None:
        """Compare the shortest row and one of middle length with and without padding to `width`."""
        order = sorted(range(window.rows), key=lambda row: lengths[row])
        copies = 1 if step.micro_batch == 1 else 2  # some models cannot take a single row
        uncut = replace(window, padded=0)
        own = []
        for row in (order[0], order[len(order) // 2]):
            rows = [row] * copies
            whole = replace(uncut.select(rows), padded=window.padded)
            own.append(_compared(step, window.select(rows), whole.padded_to(width)))
        by_rank = step.strategy.tell([tuple(one) for one in own])
        findings = [Finding(*each) for rank in by_rank for each in rank]
        different = [each for each in findings if each.error is not None and not each.same]
        if different:
            worst = max(different, key=lambda each: each.error or 0.0)
            self.cut, self.message = False, f"not cut from micro-batches: {worst.where}."
        elif any(each.same for each in findings):
            error = max(each.error or 0.0 for each in findings)
            self.cut = True
            self.message = (
                "cut from micro-batches: without it rows came out the same (relative difference at most "
                f"{error:.1g}, where rounding accounts for {findings[0].allowed:.1g})."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the decision, so that a resumed run cuts as it did before."""
        return {"cut": self.cut}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._allowed:
            self.cut = state["cut"]


def _is_stock(step: PaddedStep) -> bool:
    """Return whether the model is a class of transformers that gets its batches as they are: those go by their attention_mask."""
    names = [each.__module__.partition(".")[0] for each in type(step.model).__mro__]
    return "transformers" in names and not step.has_own_forward


def _compared(step: PaddedStep, short: Batch, long: Batch) -> Finding:
    """Compare the outputs of all modules and the losses of the same rows with less and with more padding; without dropout."""
    which = "with their padding"
    try:
        its_losses, allowed, with_padding = losses_of_rows(step, long, outputs=True)
        which = "without their padding"
        losses, _, without = losses_of_rows(step, short, outputs=True)
    except FAILURES as error:
        if is_out_of_memory(error):  # which says nothing of the model
            return Finding(None, 0.0, "")
        return Finding(torch.inf, 0.0, f"rows {which} cannot be computed ({describe(error)})")
    if not all(bool(read(torch.isfinite(each).all(), assume=True)) for each in its_losses):
        return Finding(None, allowed, "")
    apart = {
        "the loss": max(relative_distance(a, b) for a, b in zip(losses, its_losses, strict=True)),
        **_modules_apart(step.model, without, with_padding, (short.padded, long.padded)),
    }
    what = max(apart, key=lambda each: apart[each])
    return Finding(
        apart[what],
        allowed,
        f"without it {what} of a row differs by {apart[what]:.2g}, and rounding accounts for {allowed:.1g}",
    )


def _modules_apart(
    model: nn.Module, without: Outputs, with_padding: Outputs, widths: tuple[int, int]
) -> dict[str, float]:
    """Return how far the outputs of modules are apart, by a description: those with one entry a token at the tokens that both have."""
    apart: dict[str, float] = {}
    for name, calls in with_padding.items():
        kind = type(model.get_submodule(name)).__name__
        what = f"the output of '{name}' ({kind})" if name else f"the output of {kind}"
        own = without.get(name, [])
        if len(own) != len(calls):
            apart[what] = torch.inf
            continue
        for one, other in zip(own, calls, strict=True):
            if one.ndim == other.ndim:
                for dim in range(one.ndim):
                    if (one.shape[dim], other.shape[dim]) == widths:
                        other = other.narrow(dim, 0, widths[0])
            if one.shape == other.shape:
                apart[what] = max(apart.get(what, 0.0), relative_distance(one, other))
    return apart
