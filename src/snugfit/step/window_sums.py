"""Sums over the whole window that a loss needs before its rows are computed, however the window is split."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import Loss
from snugfit.core.losses import couples_rows, of_answers
from snugfit.kit.losses.preference_losses import WINDOW_SUMS
from snugfit.step.compute import WindowCompute
from snugfit.step.step_views import WindowStep

if TYPE_CHECKING:
    from collections.abc import Callable

    Forward = Callable[[nn.Module, Any], Any]


def asks_for_sums(loss: Loss, forward: Forward | None) -> bool:
    """Return whether a loss couples rows by sums alone, which a pass over micro-batches gives without gradients."""
    return of_answers(loss) and couples_rows(loss) and hasattr(forward, "window_terms")


@torch.no_grad()
def with_window_sums(step: WindowStep, window: Batch, forward: Any) -> Batch:
    """Return the window with the sums of `forward.window_terms` over its rows on all ranks, in each of its rows.

    Nothing random is drawn, and buffers stay. All ranks call this for the same windows.
    """
    passes = WindowCompute(step, window, step.seams.loss).passes()
    sums: Tensor | None = None
    with step.preserved_buffers(), step.strategy.score(step.model):
        for rows, counts in passes:
            part = window.select(rows)
            with step.seams.forward(part):
                terms: Tensor = forward.window_terms(step.model, part.data)
            own = terms.sum(dim=0) if counts else torch.zeros_like(terms[0])
            sums = own if sums is None else sums + own
    assert sums is not None
    over_ranks = torch.stack(step.strategy.add_up(list(sums)))
    return replace(window, data={**window.data, WINDOW_SUMS: over_ranks.expand(window.rows, -1)})
