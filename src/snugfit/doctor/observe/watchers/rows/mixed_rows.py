"""Rows of a batch that were mixed with others of it, and whether their targets were mixed with those of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MOST_ROWS, MOST_COLUMNS, LEAST_ROWS = 1024, 1024, 8
LEAST_COLUMNS = 4
"""In fewer, whatever becomes of a row lies between it and one of the others."""
EXACT = 1e-4
"""Part of a difference that may be left unexplained, squared; part of the range of targets by which one may be off that is mixed like that."""
NEARLY_ALL = 0.9
LEAST_SHARE, CLOSE = 0.02, 0.02
SOME_WRONG = 0.1
MOST_COMPARED = 64


class Mix(NamedTuple):
    """The row that each row was mixed with, its own where it is as it was, and the share of that other row; on the host."""

    partners: Tensor
    shares: Tensor


def mix_of(before: Tensor, after: Tensor) -> Mix | None:
    """Return how the rows of a batch were mixed, each with one other row of it; None where something else became of them.

    Rows in another order are not mixed: as negatives they have targets of their own.

    Args:
        before, after: of one shape, rows on the first axis.
    """
    rows = before.shape[0]
    if not LEAST_ROWS <= rows <= MOST_ROWS or before.shape != after.shape or before.dim() < 2:
        return None
    old, new = _columns(before), _columns(after)
    if old.shape[1] < LEAST_COLUMNS:
        return None
    moved = new - old
    size = moved.square().sum(1)
    if not bool(torch.isfinite(size).all()) or not bool((size > 0).any()):
        return None
    products = old @ old.T
    norms = products.diagonal()
    along = moved @ old.T - (moved * old).sum(1, keepdim=True)
    apart = (norms[:, None] + norms[None, :] - 2 * products).clamp_min(1e-30)
    shares = (along / apart).clamp(0, 1)
    left = (size[:, None] - 2 * shares * along + shares.square() * apart).fill_diagonal_(float("inf"))
    least, partners = left.min(1)
    own = torch.arange(rows)
    moves = size > 1e-12 * (1 + norms)
    partners = torch.where(moves, partners, own)
    share = torch.where(moves, shares[own, partners], torch.zeros_like(size))
    explained = ~moves | (least <= EXACT * size)
    if float(explained.float().mean()) < NEARLY_ALL or 2 * len(partners[moves].unique()) < int(moves.sum()):
        return None
    usual = float(share[moves].median())
    return Mix(partners, share) if LEAST_SHARE <= usual <= 1 - LEAST_SHARE else None


def wrong_targets(mix: Mix, before: Tensor, after: Tensor) -> int | None:
    """Return how many rows got the target of another row than they were mixed with, or another share of it; None where that cannot be told.

    None are wrong where all have kept their own targets, or have those of the rows that they were mixed with, as in a loss of two terms.
    """
    if after.is_floating_point():
        return _wrong_numbers(mix, before, after)
    if before.shape != after.shape or before.is_floating_point() or after.is_complex():
        return None
    old, new = (each.detach().cpu().reshape(len(each), -1).long() for each in (before, after))
    count = int(((new != old).any(1) & (new != old[mix.partners]).any(1)).sum())
    if count < SOME_WRONG * len(new):
        return 0
    # others than these in another order are targets of another kind
    same = old.sum() == new.sum() and old.square().sum() == new.square().sum()
    return count if same else None


def _wrong_numbers(mix: Mix, before: Tensor, after: Tensor) -> int | None:
    if not before.is_floating_point() and before.dim() == 1 and after.dim() == 2:
        labels = before.detach().cpu().long()
        if int(labels.min()) < 0 or int(labels.max()) >= after.shape[1]:
            return None
        before = functional.one_hot(labels, after.shape[1])
    if before.shape != after.shape or not after.numel():
        return None
    old, new = _columns(before), _columns(after)
    partner, shares = old[mix.partners], mix.shares[:, None]
    span = float((old.amax(0) - old.amin(0)).max())

    def share_of(targets: Tensor) -> float:
        return float(((new - targets).abs().amax(1) <= EXACT * span).float().mean())

    wrong = (new - old - shares * (partner - old)).abs().amax(1) > CLOSE * span
    if int(wrong.sum()) < SOME_WRONG * len(new) or max(share_of(old), share_of(partner)) >= NEARLY_ALL:
        return 0
    # only what is a mix of targets itself, of which a smoothed one is none
    swapped = partner + shares * (old - partner)
    rows = (
        wrong.nonzero().reshape(-1)[:MOST_COMPARED].tolist()
    )  # one by one: all of them at once would take much memory
    mixed = 0
    for row in rows:
        others = torch.cat((old[row] + shares[row] * (old - old[row]), swapped[row : row + 1]))
        mixed += bool((new[row] - others).abs().amax(1).min() <= EXACT * span)
    return int(wrong.sum()) if mixed >= NEARLY_ALL * len(rows) else None


def _columns(batch: Tensor) -> Tensor:
    """Return some columns of the rows on the host, in double precision, which not each device has."""
    flat = batch.detach().reshape(batch.shape[0], -1)
    return flat[:, :: max(1, flat.shape[1] // MOST_COLUMNS)].cpu().double()
