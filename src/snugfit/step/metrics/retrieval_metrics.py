"""Metrics of embeddings: how often a text's partner is the nearest of all partners, over the whole evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.errors import SettingError
from snugfit.step.metrics.all_rows_metrics import OfAllRows

_ROWS = 1024
"""Of which scores are held at once."""


def _mean_over_ranks(value: Callable[[Tensor], Tensor], embeddings: Tensor, texts: Tensor) -> float:
    if bool(embeddings.isnan().any()):
        return math.nan  # nothing is nearer than what is no number, so that each partner would be the nearest
    return float(value(ranks_of(embeddings, texts)).double().mean())


def ranks_of(embeddings: Tensor, texts: Tensor) -> Tensor:
    """Return the place of each row's second text among all second and further texts by their cosine with its first text, from 1.

    Each text counts once. Other texts that are right too, as `no_negatives` has them, are left out; texts that are exactly as near count half, so that
    embeddings that are all the same are no good ones.

    Args:
        embeddings: shape (rows, texts, width).
        texts: numbers that tell the texts apart, shape (rows, texts).
    Raises:
        SettingError: they are no embeddings of pairs.
    """
    if embeddings.ndim != 3 or embeddings.shape[:2] != texts.shape or texts.shape[1] < 2:
        raise SettingError(
            "evaluate.metrics",
            f"metrics of embeddings need those of pairs of texts, found outputs of shape {tuple(embeddings.shape)} for labels of "
            f"shape {tuple(texts.shape)}",
            "Use them with task: sentence-embedding.",
        )
    unit = F.normalize(embeddings.float(), dim=2)
    keys = torch.cat([unit[:, 1], unit[:, 2:].flatten(0, 1)])
    numbers = torch.cat([texts[:, 1], texts[:, 2:].flatten()])
    different, places_of = torch.cat([texts[:, 0], numbers]).unique(return_inverse=True)
    queries, known = places_of[: len(texts)], places_of[len(texts) :]
    pairs = (queries * len(different) + known[: len(texts)]).unique()
    first = torch.full((len(numbers),), False)
    first[_first_places(numbers)] = True
    ranks = []
    for start in range(0, len(texts), _ROWS):
        rows = range(start, min(start + _ROWS, len(texts)))
        part = slice(rows.start, rows.stop)
        places = torch.arange(len(rows)), torch.arange(rows.start, rows.stop)
        scores = unit[part, 0] @ keys.T
        own = scores[places].unsqueeze(1)
        query = queries[part].unsqueeze(1)
        right = torch.isin(query * len(different) + known, pairs) | (
            known == query
        )  # as `no_negatives` has it
        others = first & ~right
        others[places] = False
        above = ((scores > own) & others).sum(dim=1)
        level = ((scores == own) & others).sum(dim=1)
        ranks.append(1 + above + level / 2)
    return torch.cat(ranks)


def _first_places(numbers: Tensor) -> Tensor:
    """Return where each number stands first."""
    _, inverse = numbers.unique(return_inverse=True)
    places = torch.full((int(inverse.max()) + 1,), len(numbers))
    return places.scatter_reduce(0, inverse, torch.arange(len(numbers)), "amin")


OF_EMBEDDINGS: Mapping[str, OfAllRows] = {
    "recall_at_1": partial(_mean_over_ranks, lambda ranks: ranks <= 1),
    "recall_at_10": partial(_mean_over_ranks, lambda ranks: ranks <= 10),
    "mrr": partial(_mean_over_ranks, lambda ranks: 1 / ranks),
}
