"""Watch averages that are taken of a model and itself, and targets of noise that is not the noise that was added."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.own_calls import after_own_calls
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, where

_Call = Callable[..., Any]
MOST_DRAWN, MOST_HELD = 8, 1_000_000
LEAST_NUMBERS, ADDED, APART = 64, 0.25, 0.15
"""Of noise: how many numbers tell, and the correlations with the inputs of what was added to them and of what was not."""


class NoiseDrawn:
    """The noise that was drawn last, of each update."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._drawn: list[weakref.ref[Tensor]] = []
        self._held: list[Tensor] = []

    def note(self, _name: str, _args: tuple[Any, ...], _kwargs: Mapping[str, Any], result: Tensor) -> None:
        """Note what a function has drawn."""
        if result.dim() and result.numel() >= LEAST_NUMBERS:
            self._drawn = [*self._drawn[1 - MOST_DRAWN :], weakref.ref(result)]
            if (
                result.numel() <= MOST_HELD
            ):  # what a function has added to its argument is gone when that returns
                self._held = [*self._held[1 - MOST_DRAWN :], result]

    def look_at(self, batch: Tensor | None, target: Tensor) -> None:
        """Note a target that is noise which has nothing to do with the batch, beside other noise of its form that was added to it."""
        recorder = self._recorder
        drawn = [each for each in (reference() for reference in self._drawn) if each is not None]
        known = any(each is target for each in drawn)
        self._held = []
        if not known or batch is None or batch is target or any(each is batch for each in drawn):
            return
        batch = _part_like(batch, target)
        others = [each for each in drawn if each is not target and each.shape == target.shape]
        if batch.shape != target.shape or not others or not batch.is_floating_point():
            return
        added = max(abs(_correlation(each, batch)) for each in others)
        if added >= ADDED and abs(_correlation(target, batch)) <= APART:
            what = (
                f"The target is noise that was drawn anew: what was added to the inputs (a correlation of {added:.2f} with them) is another draw, "
                "and nothing tells the target."
            )
            fix = (
                "noise = torch.randn_like(x)\nloss = F.mse_loss(model(signal * x + sigma * noise, t), noise)"
            )
            recorder.add(Fault(where(), recorder.log.updates, "mismatched_rows", what, fix, 4, certain=True))


def _part_like(batch: Tensor, target: Tensor) -> Tensor:
    """Return the first columns, or channels, of a batch, as many as targets have, where what tells the time stands behind them; else the batch."""
    wider = batch.dim() == target.dim() > 1 and batch.shape[1] > target.shape[1]
    same = wider and (len(batch), *batch.shape[2:]) == (len(target), *target.shape[2:])
    return batch[:, : target.shape[1]] if same else batch


def _correlation(one: Tensor, other: Tensor) -> float:
    pair = torch.stack([each.detach().reshape(-1).float() for each in (one, other)])
    return float(torch.corrcoef(pair)[0, 1])


def watch_copies(recorder: Recorder, noise: NoiseDrawn, patches: Patches) -> None:
    """Record noise as it is drawn, in the first updates, and weights that are mixed with themselves."""
    drawing = after_own_calls(recorder, noise.note)
    in_c = torch.randn_like  # not randn: a default device knows that by its identity
    patches.wrap(torch, "randn_like", drawing)
    script_as(torch.randn_like, in_c)

    def mixing(original: _Call) -> _Call:
        name = original.__name__

        def mix(values: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                isinstance(other, Tensor)
                and recorder.log.updates
                and not torch.compiler.is_dynamo_compiling()
                and not recorder.looking
                and is_own(sys._getframe(1).f_code.co_filename)
                and recorder.here
            ):
                with recorder.guard():
                    _look_at_mix(recorder, name, values, other, kwargs.get("alpha", 1))
            return original(values, other, *args, **kwargs)

        return mix

    for name in ("add_", "lerp_"):
        patches.wrap(Tensor, name, mixing)


def _look_at_mix(recorder: Recorder, name: str, values: Tensor, other: Tensor, alpha: Any) -> None:
    """Note weights to which a share of themselves is added, as where an average is the model and no copy of it."""
    if values is not other and (values.data_ptr() != other.data_ptr() or not values.numel()):
        return
    share = name == "lerp_" or (isinstance(alpha, float) and 0 < alpha < 1)
    weights = isinstance(values, torch.nn.Parameter) or isinstance(other, torch.nn.Parameter)
    if share and weights and values.shape == other.shape and recorder.active:
        what = "The average of the weights is taken of a parameter and itself: the average is the model, not a copy of it."
        recorder.add(
            Fault(
                where(),
                recorder.log.updates,
                "average_stands_still",
                what,
                "average = copy.deepcopy(model)",
                3,
                certain=True,
            )
        )
