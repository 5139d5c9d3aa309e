"""Watch gradient scalers: which gradients carry the loss scale, and what changes them while they do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import Capped, Rescale, ScalerStep
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.own_source import line_of_hook
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Gradients, magnitude, summable

_Call = Callable[..., Any]
LEAST_SHARE = 0.1
_LIMITS = re.compile(r"clamp|clip|max_norm|minimum")


class ScalerWatch:
    """A watcher of the scalers that mixed precision in float16 needs."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder, self._gradients = recorder, gradients
        self._depth = 0

    @property
    def stepping(self) -> bool:
        """Return whether a scaler is making an optimizer's step now."""
        return self._depth > 0

    def install(self, patches: Patches) -> None:
        scaler = torch.amp.GradScaler
        patches.wrap(scaler, "scale", self._scale)
        patches.wrap(scaler, "unscale_", self._unscale)
        patches.wrap(scaler, "step", self._step)

    def _scale(self, original: _Call) -> _Call:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            with self._recorder.guard():
                if isinstance(outputs, Tensor) and scaler.is_enabled() and self._recorder.active:
                    self._gradients.scale(outputs, scaled, scaler.get_scale())
            return scaled

        return scale

    def _unscale(self, original: _Call) -> _Call:
        def unscale_(scaler: Any, optimizer: Any) -> None:
            self._note_rescale(optimizer)
            original(scaler, optimizer)
            with self._recorder.guard():
                state = self._gradients.states.get(self._recorder.number(optimizer))
                if state is not None and self._recorder.active:
                    state.scaled, state.lengths = False, []
                    state.size = magnitude(state.gradients())

        return unscale_

    def _note_rescale(self, optimizer: Any) -> None:
        """Record whether gradients were changed while they carried the scale, before they are unscaled."""
        with self._recorder.guard():
            number = self._recorder.number(optimizer)
            state = self._gradients.states.get(number)
            if state is None or not state.lengths or not self._recorder.active:
                return
            lengths, state.lengths = state.changed(), []
            cap = cap_of([each.grad for each in state.parameters()]) if lengths is None else None
            if cap is not None:
                at, update = line_of_hook(_LIMITS) or where(), self._recorder.log.updates
                self._recorder.add(Capped(at, update, number, state.scale, *cap))
            if lengths is not None:
                before, now = lengths
                self._recorder.add(
                    Rescale(
                        where(),
                        self._recorder.log.updates,
                        number,
                        state.scale,
                        before.norm,
                        now.norm,
                        before.largest,
                        now.largest,
                    )
                )

    def _step(self, original: _Call) -> _Call:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._note_rescale(optimizer)
            with self._recorder.guard():
                number = self._recorder.number(optimizer)
                self._recorder.add(ScalerStep(where(), self._recorder.log.updates, number))
            self._depth += 1
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                self._depth -= 1

        return step


def cap_of(gradients: Sequence[Tensor | None]) -> tuple[float, float, int] | None:
    """Return the largest absolute value, the share of the numbers that are not 0 which have it, and in how many gradients, where it is in several and of both signs, as a limit is; None else.

    >>> first, second = torch.tensor([1.0, -0.5, 0.0]), torch.tensor([-1.0, 0.2])
    >>> cap_of([first, None, second]), cap_of([first, 2 * second])
    ((1.0, 0.5, 2), None)
    """
    dense = [summable(each) for each in gradients if each is not None and not each.is_sparse and each.numel()]
    largest = max((float(each.abs().max()) for each in dense), default=0.0)
    at_limit = [(int((each == largest).sum()), int((each == -largest).sum())) for each in dense]
    above, below = (sum(each[side] for each in at_limit) for side in (0, 1))
    weights = sum(any(each) for each in at_limit)
    if not largest or not above or not below or weights < 2:
        return None
    share = (above + below) / sum(int(each.count_nonzero()) for each in dense)
    return (largest, share, weights) if share >= LEAST_SHARE else None
