"""The axes of models' outputs on which losses find the classes."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Output:
    """A model's output, by its place in memory: it is not kept."""

    module: int
    storage: int
    shape: torch.Size
    strides: tuple[int, ...]


class ClassAxes:
    """The last model's output of several axes, and on which of them losses have found the classes of that model."""

    def __init__(self) -> None:
        self._last: _Output | None = None
        self._axes: dict[int, set[int]] = {}
        self.bests: list[tuple[weakref.ref[Tensor], torch.Size, str, bool]] = []
        self.whole: tuple[weakref.ref[Tensor], torch.Size, str] | None = None

    def note_best(self, best: Tensor, scores: Tensor, at: str) -> None:
        """Note what an argmax over the first of two axes has given, at this line of the script."""
        values = scores.detach()
        one_hot = bool(((values == 0) | (values == 1)).all()) and bool((values.sum(1) == 1).all())
        self.bests = [*self.bests[-1:], (weakref.ref(best), scores.shape, at, one_hot)]

    def note_whole(self, best: Tensor, scores: Tensor, at: str) -> None:
        """Note what an argmax over both of two axes has given, one number, at this line of the script."""
        self.whole = (weakref.ref(best), scores.shape, at)

    def whole_against(self, one: Any, other: Any) -> tuple[torch.Size, str] | None:
        """Return the size of the scores of which one side is the place of the largest of all, and the other has a class for each row; and the line."""
        if self.whole is None:
            return None
        best, shape, at = self.whole
        sides = [side for side in (one, other) if isinstance(side, Tensor)]
        if len(sides) != 2 or best() is None or not any(side is best() for side in sides):
            return None
        classes = sides[1] if sides[0] is best() else sides[0]
        return (shape, at) if classes.shape == shape[:1] and shape[0] > 1 < shape[1] else None

    def best_of(self, one: Any, other: Any) -> tuple[torch.Size, str] | None:
        """Return the size of the scores of which both are the places of the largest in each column, and the line; None where they are not.

        Of rows with a class each, one side is one-hot; curves with a peak each are not.
        """
        known = [(best(), shape, at) for best, shape, at, _ in self.bests]
        if not any(one_hot for *_, one_hot in self.bests):
            return None
        if len(known) < 2 or known[0][0] is not one or known[1][0] is not other or known[0][1] != known[1][1]:
            return None
        return known[0][1], known[0][2]

    def note_output(self, module: int, output: Any) -> None:
        """Note what a model gave, if it is a tensor of several axes."""
        self._last = None
        if isinstance(output, Tensor) and _lies_in_strides(output) and output.dim() > 2:
            storage = output.untyped_storage().data_ptr()
            self._last = _Output(module, storage, output.shape, output.stride())

    def note(self, scores: Tensor, axis: int) -> None:
        """Note that a loss finds the classes on this axis of its scores, which may be a view of the last output."""
        last = self._of(scores)
        if last is None:
            return
        wanted = scores.shape[axis], scores.stride(axis)
        axes = enumerate(zip(last.shape, last.strides, strict=True))
        place = next((place for place, each in axes if each == wanted), None)
        if place is not None:
            self._axes.setdefault(last.module, set()).add(place)

    def of(self, scores: Tensor) -> set[int]:
        """Return the axes on which losses find the classes; none where the scores are not the last output."""
        last = self._of(scores)
        whole = last is not None and (scores.shape, scores.stride()) == (last.shape, last.strides)
        return self._axes.get(last.module, set()) if last is not None and whole else set()

    def _of(self, scores: Tensor) -> _Output | None:
        """Return the last output, if the scores lie in its memory."""
        if self._last is None or not _lies_in_strides(scores):
            return None
        return self._last if scores.untyped_storage().data_ptr() == self._last.storage else None


def _lies_in_strides(tensor: Tensor) -> bool:
    return not tensor.is_nested and tensor.layout is torch.strided
