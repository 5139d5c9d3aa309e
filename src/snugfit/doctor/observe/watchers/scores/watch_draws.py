"""Watch draws of a model that are put together: passes over the same rows that all give the same, since its dropout is off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import Forward
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder

_Call = Callable[..., Any]
LEAST_DRAWS = 4
"""So many passes are meant to differ; two or three may be shown beside each other."""


def watch_draws(recorder: Recorder, patches: Patches) -> None:
    """Record equal results of several passes without a graph that the script stacks or joins."""

    def joining(original: _Call) -> _Call:
        def joined(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            seen = not torch.compiler.is_dynamo_compiling() and recorder.active and recorder.log.updates
            if seen and isinstance(tensors, list | tuple) and len(tensors) >= LEAST_DRAWS:
                with recorder.guard():
                    _look_at(recorder, tensors)
            return original(tensors, *args, **kwargs)

        return joined

    for name in ("stack", "cat", "concat"):
        in_c = getattr(torch, name)
        patches.wrap(torch, name, joining)
        script_as(getattr(torch, name), in_c)


def _look_at(recorder: Recorder, tensors: Sequence[Any]) -> None:
    """Note passes whose results are these, and equal, of a model that would drop at random in training mode."""
    first = tensors[0]
    if not isinstance(first, Tensor) or not first.is_floating_point() or first.dim() < 2:
        return
    if not all(isinstance(each, Tensor) and each.shape == first.shape for each in tensors):
        return
    passes = list(islice((e for e in reversed(recorder.log.events) if isinstance(e, Forward)), len(tensors)))
    kinds = {(each.module, each.at, each.rows) for each in passes}
    if len(passes) < len(tensors) or len(kinds) > 1 or any(each.training or each.grad for each in passes):
        return
    model = next((each for each in recorder.log.models if each.id == passes[0].module), None)
    dropping = [] if model is None else [name for name in model.modal if name not in model.norms]
    if dropping and all(torch.equal(each, first) for each in tensors[1:]):
        what = f"{len(tensors)} passes over the same rows are put together and are all the same: {', '.join(dropping[:4])} is off in evaluation mode."
        fix = "for each in model.modules():\n    if isinstance(each, nn.Dropout):\n        each.train()   # it draws, and norms stay as they are"
        recorder.add(Fault(passes[0].at, recorder.log.updates, "train_mode", what, fix))
