"""Last layers that are made for a model which has learned before, and stay frozen as they were drawn."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.state_events import Restore
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, ModuleOutput
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, where
from snugfit.doctor.observe.watchers.modules.made_layers import see_layers_made

LEAST_SEEN, MOST_HEADS, MOST_WEIGHTS = 4, 64, 64


class _Made(NamedTuple):
    """A layer that the script has made, and its weights: where, and the first of these as they were drawn."""

    layer: weakref.ref[nn.Module]
    weights: weakref.ref[Tensor]
    at: str
    drawn: Tensor


class HeadWatch(Companion):
    """A watcher of layers that come to a model after an update or a checkpoint, in the first updates of each optimizer."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[int, _Made] = {}
        self._given: tuple[_Made, int] | None = None

    def install(self, patches: Patches) -> None:
        see_layers_made(self._recorder, patches, self._note)

    def _note(self, layer: nn.Linear) -> None:
        log = self._recorder.log
        learned = log.updates or any(isinstance(each, Restore) for each in log.events)
        if learned and len(self._made) < MOST_HEADS and called_directly():
            drawn = _first_of(layer.weight)
            self._made[id(layer)] = _Made(weakref.ref(layer), weakref.ref(layer.weight), where(), drawn)

    def ended(self, given: ModuleOutput) -> None:
        made = self._made.get(id(given.module))
        if made is not None and isinstance(given.output, Tensor):
            self._given = made, given.output.data_ptr()
        if not given.outermost:
            return
        last, self._given = self._given, None
        outputs = [each for each in _tensors_of(given.output) if each.requires_grad]
        if (
            last is not None
            and any(each.data_ptr() == last[1] for each in outputs)
            and self._is_as_drawn(last[0])
        ):
            what = (
                "The last layer was made after the rest of the model had learned, and is frozen with it: it stays as it was drawn, "
                "and what is trained below learns to fit random numbers."
            )
            fix = "model.head.requires_grad_(True)   # before the optimizer is made of what trains"
            self._recorder.add(
                Fault(last[0].at, self._recorder.log.updates, "not_in_optimizer", what, fix, LEAST_SEEN)
            )

    def _is_as_drawn(self, made: _Made) -> bool:
        """Return whether a layer is frozen, and nothing has written to its weights since it was made."""
        recorder, layer, weights = self._recorder, made.layer(), made.weights()
        if not isinstance(layer, nn.Linear) or weights is not layer.weight:
            return False
        if any(each.requires_grad for each in layer.parameters()):
            return False
        now = _first_of(weights)
        if not torch.equal(made.drawn.to(now), now):
            return False
        return not any(recorder.number(weights) in each.parameters for each in recorder.optimizers.values())


def _first_of(weights: Tensor) -> Tensor:
    """Return the first weights, by whose values it is known whether any were written: what goes by `.data` raises no version."""
    return weights.detach().flatten()[:MOST_WEIGHTS].clone()


def _tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors that a model gave: one, several, or by name."""
    values = (
        output.values()
        if isinstance(output, Mapping)
        else output
        if isinstance(output, tuple | list)
        else [output]
    )
    return [each for each in values if isinstance(each, Tensor)]
