"""Pictures and masks of which a loader hands out the same ones again: whether both come in the same orientation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

MOST_PAIRS, MOST_VALUES = 64, 2**16
ENOUGH = 32
"""Pairs that came again, after which no more are looked at."""
_FLIPS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda values: values,
    lambda values: values.flip(-1),
    lambda values: values.flip(-2),
    lambda values: values.flip(-1, -2),
    lambda values: values.transpose(-1, -2),
    lambda values: values.transpose(-1, -2).flip(-1),
    lambda values: values.transpose(-1, -2).flip(-2),
    lambda values: values.transpose(-1, -2).flip(-1, -2),
)
"""The identity first; the turns of a square last."""


class Orientations:
    """The first pairs of picture and mask of one loader, to be known again however they are flipped or turned."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._seen = 0

    def apart(self, parts: Sequence[Tensor]) -> int:
        """Return how many pictures of a batch come again in an orientation that their masks do not come in."""
        pair = _pictures_and_masks(parts) if self._seen < ENOUGH else None
        if pair is None:
            return 0
        pictures, masks = pair
        apart = 0
        for picture, mask, *key in zip(pictures, masks, _sums(pictures), _sums(masks), strict=True):
            if key[0] == key[1]:
                continue  # two views of one picture, which are to differ
            known = self._first.get((key[0], key[1]))
            if known is None:
                if len(self._first) < MOST_PAIRS:
                    self._first[key[0], key[1]] = picture.detach().clone(), mask.detach().clone()
                continue
            ways = [_ways(*each) for each in zip(known, (picture, mask), strict=True)]
            if all(ways):
                self._seen += 1
                apart += ways[0].isdisjoint(ways[1])
        return apart


def _pictures_and_masks(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Return the two parts of a batch of which one is pictures and the other one as many masks of their size."""
    pictures = next((each for each in parts if each.dim() == 4 and each.is_floating_point()), None)
    if pictures is None or not 16 <= pictures[0].numel() <= MOST_VALUES:
        return None
    for each in parts:
        fits = each.dim() > 2 and each.shape[-2:] == pictures.shape[-2:] and len(each) == len(pictures)
        if fits and each is not pictures and each.numel() <= pictures.numel():
            return pictures, each
    return None


def _sums(batch: Tensor) -> list[int]:
    """Return of each row a sum of its bits, which does not depend on their order."""
    flat = batch.detach().reshape(len(batch), -1)
    bits = flat.float().contiguous().view(torch.int32) if flat.is_floating_point() else flat
    sums: list[int] = (bits.long() ** 2).sum(1).tolist()
    return sums


def _ways(before: Tensor, now: Tensor) -> set[int]:
    """Return the ways in which one is the other turned over."""
    if before.shape != now.shape:
        return set()
    ways = _FLIPS if now.shape[-1] == now.shape[-2] else _FLIPS[:4]
    return {number for number, turned in enumerate(ways) if torch.equal(turned(before), now.detach())}
