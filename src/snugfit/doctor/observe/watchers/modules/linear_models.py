"""Watch models with hidden layers between which nothing stands but what is linear: each is one layer, written as two."""

from __future__ import annotations

import weakref
from itertools import pairwise

from torch import Tensor, nn

from snugfit.doctor.observe.events.term_events import LinearModel
from snugfit.doctor.observe.graphs.linear_chains import linear_chain
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.companions import Companion, ModuleOutput
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.modules.made_layers import see_layers_made

MOST_MADE = 4096


class LinearWatch(Companion):
    """A watcher of what models give, in the first updates, and of where their layers were made."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made: dict[int, tuple[weakref.ref[nn.Module], str]] = {}

    def install(self, patches: Patches) -> None:
        """See where layers are made."""
        see_layers_made(self._recorder, patches, self._note)

    def _note(self, layer: nn.Linear) -> None:
        if len(self._made) < MOST_MADE and type(layer) is nn.Linear:
            self._made[id(layer.weight)] = weakref.ref(layer), where()

    def ended(self, given: ModuleOutput) -> None:
        output = given.output
        if not given.outermost or not isinstance(output, Tensor) or output.grad_fn is None:
            return
        weights = linear_chain(output.grad_fn)
        held = {id(each) for each in given.module.parameters()}
        for second, first in pairwise(weights):
            (out, middle), inputs = second.shape, first.shape[1]
            # a middle that is narrower than both sides is meant: few numbers are to say what is in many
            if middle >= min(out, inputs) and {id(first), id(second)} <= held:
                layer, at = self._made.get(id(second), (None, ""))
                if layer is not None and getattr(layer(), "weight", None) is second:
                    sizes = [inputs, middle, out]
                    self._recorder.add(LinearModel(at, self._recorder.log.updates, sizes, where()))
                return
