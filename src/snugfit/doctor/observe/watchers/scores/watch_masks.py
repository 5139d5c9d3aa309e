"""Watch what models of pictures predict at each place in evaluations, beside the masks of the same rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.events.run_events import OneClassPredicted, PlaceLabels
from snugfit.doctor.observe.recording.companions import Companion, LossCall
from snugfit.doctor.observe.recording.own_source import line_of_loss
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_SIDE, MOST_NUMBERS, MOST_LOOKS = 4, 1_000_000, 10_000
_OVER_CLASSES = ("cross_entropy", "nll_loss")


class MaskWatch(Companion):
    """A watcher of classes that are predicted for the places of pictures, until a second one is in an evaluation."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._batch: list[weakref.ref[Tensor]] = []
        self._mixed: tuple[int, int] | None = None
        self._learned_at = ""
        self._looks = 0

    def drew(self, parts: Iterable[Tensor]) -> None:
        """Note the tensors of a batch that a loader has handed out."""
        self._batch = [weakref.ref(each) for each in parts if each.dim() > 2]

    def differentiated(self, value: Tensor) -> None:
        del value  # its line alone is meant
        self._learned_at = line_of_loss() or where()

    def lost(self, loss: LossCall) -> None:
        """Look at the labels of places that a loss over several classes gets."""
        scores, target = loss.scores, loss.target
        over = loss.name in _OVER_CLASSES and scores.dim() == target.dim() + 1 >= 4 and scores.shape[1] > 1
        if over and not target.is_floating_point() and target.numel():
            alike = not bool(target.any())
            update = self._recorder.log.updates
            self._recorder.add(PlaceLabels(where(), update, scores.shape[1], target.numel(), alike))

    def evaluated(self, model: int, output: Any) -> None:
        """Look at what a model gave without a graph."""
        update = self._recorder.log.updates
        if not isinstance(output, Tensor) or not 4 <= output.dim() <= 5 or (model, update) == self._mixed:
            return
        if len(self._batch) < 2 or not output.is_floating_point() or min(output.shape[2:]) < LEAST_SIDE:
            return
        rows = max(1, MOST_NUMBERS * len(output) // max(output.numel(), 1))
        predicted = _classes_of(output[:rows])
        classes = max(output.shape[1], 2)
        masks = [_mask_of(each(), predicted.shape, classes) for each in self._batch]
        mask = next((each for each in masks if each is not None), None)
        if mask is None or self._looks >= MOST_LOOKS:
            return
        self._looks += 1
        first = int(predicted.flatten()[0])
        mixed = bool((predicted != first).any())
        self._mixed = (model, update) if mixed else self._mixed
        alike, whole = int((mask == first).sum()), mask.numel()
        self._recorder.add(
            OneClassPredicted(self._learned_at, update, model, -1 if mixed else first, alike, whole)
        )


def _classes_of(output: Tensor) -> Tensor:
    """Return the class of the largest score at each place, or whether one score is that of what is marked."""
    if output.shape[1] > 1:
        return output.argmax(1)
    scores = output[:, 0]
    return (scores > (0.0 if bool((scores < 0).any()) else 0.5)).long()


def _mask_of(drawn: Tensor | None, shape: Any, classes: int) -> Tensor | None:
    """Return the classes of places that a loader has drawn, of as many rows; None where it has drawn something else."""
    if drawn is None or drawn.is_complex():
        return None
    mask = drawn.detach()
    mask = mask[:, 0] if mask.dim() == len(shape) + 1 and mask.shape[1] == 1 else mask
    if mask.shape[1:] != shape[1:] or len(mask) < shape[0] or not mask.numel():
        return None
    mask = mask[: shape[0]]
    whole = not mask.is_floating_point() or bool((mask == mask.round()).all())
    return mask.long() if whole and int(mask.min()) >= 0 and int(mask.max()) < classes else None
