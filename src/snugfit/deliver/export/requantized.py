"""The loss of a model that was quantised anew: how much less likely what the scored model says is to it."""

from __future__ import annotations

import torch
from torch import Tensor

from snugfit.deliver.export.comparison import Comparison, differences
from snugfit.deliver.export.read_back import Reading, texts_of
from snugfit.deliver.export.scored import ScoredRows


def judged_quantised(reading: Reading, scored: ScoredRows, *, chooses_one: bool) -> Comparison:
    """Return how far a quantised model is from what was scored; that it is some way off was asked for, and no fault.

    Args:
        chooses_one: whether its logits are of a choice of one among several, such as the next token.
    """
    difference, largest = differences(scored.logits, reading.logits)
    checked, missed = texts_of(reading, scored)
    equal = sum(own == other for own, other in zip(scored.answers, reading.answers, strict=True))
    finite = all(bool(each.isfinite().all()) for each in reading.logits)
    return Comparison(
        reading.library,
        len(scored.inputs),
        difference,
        largest,
        None,
        (equal, len(scored.answers)) if scored.answers else None,
        checked,
        missed or (None if finite else "its logits are not finite"),
        lost=divergence(scored.logits, reading.logits) if scored.logits and chooses_one else None,
    )


def divergence(scored: list[Tensor], given: list[Tensor]) -> float:
    """Return the mean Kullback-Leibler divergence of what is given from what was scored, in nats a token or a row.

    >>> divergence([torch.zeros(1, 2)], [torch.zeros(1, 2)])
    0.0
    """
    own = torch.cat([each.flatten(0, -2) for each in scored]).double().log_softmax(-1)
    other = torch.cat([each.flatten(0, -2) for each in given]).double().log_softmax(-1)
    return float((own.exp() * (own - other)).sum(-1).mean())
