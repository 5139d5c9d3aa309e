"""Linear layers as they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder


def see_layers_made(recorder: Recorder, patches: Patches, note: Callable[[nn.Linear], None]) -> None:
    """Call `note` with each linear layer that is made where this is watched, by whoever makes it."""

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(layer: Any, *args: Any, **kwargs: Any) -> None:
            original(layer, *args, **kwargs)
            if torch.compiler.is_dynamo_compiling() or recorder.looking or not recorder.here:
                return
            with recorder.guard():
                note(layer)

        return __init__

    patches.wrap(nn.Linear, "__init__", making)
