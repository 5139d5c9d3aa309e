"""Watch models that give a value for each place of a series: whether the value that is to be given is among what they may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.graphs.dependence import is_noticed, looks_ahead_at, mixed_at, sensitivity
from snugfit.doctor.observe.recording.companions import Companion, ModelCall, ModuleOutput
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where

LEAST_PLACES, LEAST_ROWS, MOST_CHANNELS, LEAST_SEEN = 8, 2, 8, 2
LITTLE, SOME = 1e-3, 0.05
"""Share of the largest gradient, from which on a score depends on a place at all, and from which on it does for the most part."""


class _Series(NamedTuple):
    """A view of rows of values, one for each place, and how the same is taken of scores."""

    values: Tensor
    taken: Callable[[Tensor], Tensor]


class SeriesWatch(Companion):
    """A watcher of series whose targets are the next of their own values, or these values themselves, in the first updates."""

    def __init__(self, recorder: Recorder, *, hooked: Callable[[], bool]) -> None:
        self._recorder, self._hooked = recorder, hooked
        self._inputs: list[Tensor] = []
        self._first: tuple[nn.Module, Tensor] | None = None

    def begins(self, call: ModelCall) -> None:
        self._inputs = [
            each for each in call.inputs if each.is_floating_point() and each.layout is torch.strided
        ]
        self._first = None

    def ended(self, given: ModuleOutput) -> None:
        output = given.output[0] if isinstance(given.output, tuple) and given.output else given.output
        if self._first is None and isinstance(output, Tensor) and output.requires_grad:
            self._first = given.module, output

    def scored(self, scores: Tensor, target: Tensor) -> None:
        first, inputs = self._first, self._inputs
        if first is None or not target.is_floating_point() or scores.shape != target.shape:
            return
        if is_noticed(hooked=self._hooked()):
            return
        for wanted in _series_of(target.detach()):
            rows, places = wanted.values.shape
            if rows < LEAST_ROWS or places < LEAST_PLACES or not _varies(wanted.values):
                continue
            alike = [each for batch in inputs for each in _series_of(batch.detach())]
            same = any(torch.equal(each.values, wanted.values) for each in alike)
            ahead = not same and any(_is_next(each.values, wanted.values) for each in alike)
            if same or ahead:
                self._look(wanted.taken(scores), scores, *first, ahead=ahead)
                return

    def _look(
        self, by_place: Tensor, scores: Tensor, layer: nn.Module, given: Tensor, *, ahead: bool
    ) -> None:
        """Note a score that depends on places behind its own, or on its own alone, by the gradient with respect to what the first layer gave."""
        places = by_place.shape[1]
        axis = _axis_of_places(layer, given, places)
        place = places // 2 - 1
        gradient = sensitivity(by_place[0, place].float(), given) if axis else None
        if gradient is None:
            return
        by_row = gradient.detach().float().abs().movedim(axis, 1).flatten(2).amax(2)
        most, others = float(by_row[0].max()), float(by_row[1:].max())
        behind, own = float(by_row[0, place + 1 : places].max()), float(by_row[0, place])
        both_ways = isinstance(layer, nn.RNNBase) and layer.bidirectional
        # a batch norm mixes all places of all rows: then those of other rows are read no less
        sees = both_ways or (behind > LITTLE * most and behind > 2 * others)
        update = self._recorder.log.updates
        if ahead and sees:
            what = (
                "The target of each place is the next value of the series, and the score depends on values behind its place: the model reads its "
                "answer."
            )
            fix = "x = F.pad(x, ((kernel - 1) * dilation, 0))   # before what is padded on the left alone; a causal mask; bidirectional=False"
            at = looks_ahead_at(scores.grad_fn) or mixed_at(scores.grad_fn, places) or where()
            self._recorder.add(Fault(at, update, "sees_the_future", what, fix, LEAST_SEEN, certain=True))
        elif not ahead and not sees and most and own > SOME * most and not _spreads(layer):
            what = (
                "The target of each place is the value that the model is given there, and none behind it is read: it learns to copy, where the next "
                "value was meant."
            )
            fix = "x, y = series[:-1], series[1:]   # the target is the value after each"
            self._recorder.add(Fault(where(), update, "shifted_labels", what, fix, LEAST_SEEN))


def _series_of(values: Tensor) -> Iterator[_Series]:
    """Yield the channels of values as rows of places: where these are the last axis, and where they are the one before it."""
    if values.dim() == 2:
        yield _Series(values, lambda of: of)
    elif values.dim() == 3:
        for channel in range(min(values.shape[1], MOST_CHANNELS)):
            yield _Series(values[:, channel], lambda of, channel=channel: of[:, channel])  # type: ignore[misc]
        for channel in range(min(values.shape[2], MOST_CHANNELS)):
            yield _Series(values[:, :, channel], lambda of, channel=channel: of[:, :, channel])  # type: ignore[misc]


def _varies(values: Tensor) -> bool:
    """Return whether nearly no value is that before it, as those of a constant and of a mask are."""
    return bool((values[:, 1:] != values[:, :-1]).float().mean() > 0.5)


def _is_next(values: Tensor, wanted: Tensor) -> bool:
    """Return whether what is wanted at each place is the value after it."""
    return values.shape == wanted.shape and torch.equal(values[:, 1:], wanted[:, :-1])


def _axis_of_places(layer: nn.Module, given: Tensor, places: int) -> int:
    """Return the axis of the places in what a layer gave for rows of them, which may be padded behind; 0 where it is not known."""
    if given.dim() != 3:
        return 0
    if isinstance(layer, nn.Conv1d):
        return 2 if given.shape[2] >= places else 0
    axes = [axis for axis in (1, 2) if given.shape[axis] == places]
    return axes[0] if len(axes) == 1 else 0


def _spreads(layer: nn.Module) -> bool:
    """Return whether a layer may give a place what stands behind it, as a convolution with padding does."""
    return isinstance(layer, nn.Conv1d) and layer.kernel_size[0] > 1
