"""Lines at which the script itself puts parameters into its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.state_events import NarrowNorm
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, where


class PutParameters:
    """Parameters that the script has put into modules, not torch, as a layer of it does with its own."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._lines: dict[int, tuple[str, int]] = {}

    def install(self, patches: Patches) -> None:
        patches.wrap(nn.Module, "register_parameter", self._putting)

    def at(self, parameter: Tensor) -> tuple[str, int]:
        """Return where the script has put a parameter into a module, and that one's number; "" and 0 where torch has."""
        return self._lines.get(self._recorder.number(parameter), ("", 0))

    def _putting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self._recorder

        def register_parameter(module: Any, name: str, param: Any) -> None:
            original(module, name, param)
            if (
                not torch.compiler.is_dynamo_compiling()
                and not recorder.looking
                and recorder.here
                and isinstance(param, Tensor)
            ):
                with recorder.guard():
                    if isinstance(module, nn.LayerNorm) and name == "weight" and param.numel() == 1:
                        recorder.add(NarrowNorm(where(), recorder.log.updates))
                    if called_directly("torch.nn.modules.module"):  # whose __setattr__ calls it
                        self._lines[recorder.number(param)] = where(), recorder.number(module)

        return register_parameter
