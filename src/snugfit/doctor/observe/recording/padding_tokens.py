"""Padding that no setting names: the token that ends rows of different lengths, and the labels that count there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEAST_ROWS, LEAST_RUN = 2, 2
LEAST_LONG, NEARLY_ALL = 4, 0.95


def padding_behind(tokens: Tensor) -> Tensor | None:
    """Return which tokens are padding: one token ends several rows, in runs of different lengths, and stands nowhere else; None without any.

    Args:
        tokens: rows of tokens, of two axes.

    >>> padding_behind(torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0], [4, 5, 6, 7]])).long().tolist()
    [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    >>> padding_behind(torch.tensor([[5, 0, 6, 0], [7, 0, 0, 0]]))

    Rows that a model learns to sort end in runs of their largest token:

    >>> padding_behind(torch.tensor([[9, 1, 5, 7, 7], [9, 2, 7, 7, 7]]))
    """
    if tokens.dim() != 2 or tokens.shape[1] <= LEAST_RUN or tokens.is_floating_point():
        return None
    if bool((tokens[:, 2:] >= tokens[:, 1:-1]).all()):  # behind a first token, which may be one that begins
        return None
    ends, counts = tokens[:, -1].unique(return_counts=True)
    same = tokens == ends[counts.argmax()]
    run = same.flip(1).long().cumprod(1).flip(1).bool()
    lengths = run.sum(1)
    repeated = int((lengths >= LEAST_RUN).sum()) >= LEAST_ROWS and lengths[lengths > 0].unique().numel() > 1
    return run if repeated and not bool(run.all(1).any()) and torch.equal(same, run) else None


def labels_on_padding(padding: Tensor, target: Tensor, ignored: int, weight: Any) -> tuple[int, int] | None:
    """Return how many labels count, and how many of these lie where a token is padding; None where they are not labels of the tokens.

    Args:
        padding: of the tokens.
        target: a label for each token, or for each but one of a row.
        weight: those of the classes; a class without any does not count.
    """
    rows, length = padding.shape
    width = target.numel() // rows
    if target.is_floating_point() or width * rows != target.numel() or width not in (length, length - 1):
        return None
    labels = target.detach().reshape(rows, width)
    counts = labels != ignored
    if isinstance(weight, Tensor):
        counts &= weight.detach()[labels.clamp(0, len(weight) - 1)] != 0
    return int(counts.sum()), int((counts & padding[:, :width]).sum())


def has_axes_of(sequence: Tensor, tokens: Tensor | None) -> bool:
    """Return whether vectors of tokens lie on the axes on which these do, not transposed: where both axes are as long, by equal tokens, whose vectors are equal.

    >>> tokens = torch.tensor([[1, 2, 1], [3, 1, 2], [2, 3, 3]])
    >>> vectors = torch.nn.functional.one_hot(tokens).float()
    >>> has_axes_of(vectors, tokens), has_axes_of(vectors.transpose(0, 1), tokens)
    (True, False)
    """
    if (
        tokens is None
        or tokens.is_floating_point()
        or tokens.dim() != 2
        or tokens.shape != sequence.shape[:2]
    ):
        return False
    if tokens.shape[0] != tokens.shape[1]:
        return True
    vectors = sequence.detach().reshape(tokens.numel(), -1)
    alike = [_are_alike(vectors, each.reshape(-1)) for each in (tokens, tokens.t())]
    return alike == [True, False]


def _are_alike(vectors: Tensor, tokens: Tensor) -> bool:
    """Return whether equal tokens have equal vectors."""
    order = tokens.argsort()
    same = tokens[order][1:] == tokens[order][:-1]
    return torch.equal(vectors[order][1:][same], vectors[order][:-1][same])


def is_next_along_rows(labels: Tensor, tokens: Tensor) -> bool:
    """Return whether labels are the tokens one place further on in their rows.

    >>> text = torch.arange(12).reshape(2, 6)
    >>> is_next_along_rows(text[:, 1:].reshape(-1), text[:, :-1]), is_next_along_rows(text[:, :-1], text[:, :-1])
    (True, False)
    """
    if (
        tokens.dim() != 2
        or tokens.is_floating_point()
        or labels.numel() != tokens.numel()
        or tokens.shape[1] < LEAST_LONG
    ):
        return False
    labels = labels.detach().reshape(tokens.shape)
    return labels.device == tokens.device and bool(
        (labels[:, :-1] == tokens[:, 1:]).float().mean() >= NEARLY_ALL
    )
