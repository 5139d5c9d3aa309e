"""Rows of a batch that were mixed with others of it, and whether their targets were mixed with those of the same rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

MOST_ROWS, MOST_COLUMNS, LEAST_ROWS = 1024, 1024, 8
EXACT = 1e-4
"""Part of a difference that may be left unexplained, squared."""
NEARLY_ALL = 0.9
LEAST_SHARE, CLOSE = 0.02, 0.02
SOME_WRONG = 0.1


class Mix(NamedTuple):
    """The row that each row was mixed with, its own where it is as it was, and the share of that other row; on the host."""

    partners: Tensor
    shares: Tensor


def mix_of(before: Tensor, after: Tensor) -> Mix | None:
    """Return how the rows of a batch were mixed, each with one other row of it; None where something else became of them.

    Args:
        before, after: of one shape, rows on the first axis.
    """
    rows = before.shape[0]
    if not LEAST_ROWS <= rows <= MOST_ROWS or before.shape != after.shape or before.dim() < 2:
        return None
    old, new = _columns(before), _columns(after)
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
    own = torch.arange(rows, device=left.device)
    moves = size > 1e-12 * (1 + norms)
    partners = torch.where(moves, partners, own)
    share = torch.where(moves, shares[own, partners], torch.zeros_like(size))
    explained = ~moves | (least <= EXACT * size)
    if float(explained.float().mean()) < NEARLY_ALL or float(share[moves].median()) < LEAST_SHARE:
        return None
    return Mix(partners, share)


def wrong_targets(mix: Mix, before: Tensor, after: Tensor) -> int:
    """Return how many rows got the target of another row than they were mixed with, or another share of it; 0 where that cannot be told."""
    if not after.is_floating_point():
        if before.shape != after.shape or before.is_floating_point():
            return 0
        old, new = (each.cpu().reshape(len(after), -1) for each in (before, after))
        partner = old[mix.partners]
        count = int(((new != old).any(1) & (new != partner).any(1)).sum())
        return count if count >= SOME_WRONG * len(after) else 0
    if not before.is_floating_point() and before.dim() == 1 and after.dim() == 2:
        before = functional.one_hot(before.long().clamp_min(0), after.shape[1])
    if before.shape != after.shape:
        return 0
    old, new = (each.detach().cpu().reshape(len(after), -1).double() for each in (before, after))
    shares = mix.shares[:, None]
    wanted = old + shares * (old[mix.partners] - old)
    slack = CLOSE * float((old.amax(0) - old.amin(0)).max())
    off = (new - wanted).abs().amax(1)
    wrong = off > slack
    if int(wrong.sum()) < SOME_WRONG * len(after):
        return 0
    # only what is a mix of targets itself, of which a smoothed one is none
    others = old[:, None] + shares[:, None] * (old[None] - old[:, None])
    swapped = old[mix.partners] + shares * (old - old[mix.partners])
    mixed = (new[:, None] - others).abs().amax(2).amin(1) <= slack
    mixed |= (new - swapped).abs().amax(1) <= slack
    return int(wrong.sum()) if float(mixed.float().mean()) >= NEARLY_ALL else 0


def _columns(batch: Tensor) -> Tensor:
    """Return some columns of the rows, in double precision, which not every device has."""
    flat = batch.detach().reshape(batch.shape[0], -1)
    return flat[:, :: max(1, flat.shape[1] // MOST_COLUMNS)].cpu().double()
