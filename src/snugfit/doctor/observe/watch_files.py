"""Watch what is written and read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.script_events import Load, Save
from snugfit.doctor.observe.watch_log import Recorder, called_directly, where
from snugfit.doctor.observe.weights import Weights

_Call = Callable[..., Any]


def watch_files(recorder: Recorder, weights: Weights, patches: Patches) -> None:
    """Record torch.save, torch.load, pickle.dump of modules and tensors, and safetensors' save_file."""

    def saving(original: _Call) -> _Call:
        def save(*args: Any, **kwargs: Any) -> Any:
            if recorder.active:
                _add("", next(iter((*args, *kwargs.values())), None))
            return original(*args, **kwargs)

        return save

    def loading(original: _Call) -> _Call:
        def load(*args: Any, **kwargs: Any) -> Any:
            if recorder.active and kwargs.get("weights_only") is False:
                with recorder.guard():
                    recorder.add(Load(where(), recorder.log.updates, called_directly()))
            return original(*args, **kwargs)

        return load

    def dumping(original: _Call) -> _Call:
        def dump(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active and called_directly():
                _add("module", obj)
            return original(obj, *args, **kwargs)

        return dump

    def _add(what: str, saved: Any) -> None:
        """Note a save; of what pickle writes, only what holds tensors."""
        recorder.quiet += 1
        with recorder.guard():
            if not what or _holds_tensors(saved):
                kind = what or ("module" if _holds_module(saved) else "state")
                recorder.add(
                    Save(where(), recorder.log.updates, kind, called_directly(), weights.in_saved(saved))
                )
        recorder.quiet -= 1

    def safetensors_imported(module: ModuleType) -> None:
        patches.wrap(module, "save_file", saving)

    patches.wrap(torch, "save", saving)
    patches.wrap(torch, "load", loading)
    patches.wrap(pickle, "dump", dumping)
    patches.after_import("safetensors.torch", safetensors_imported)


def _holds_module(saved: Any) -> bool:
    if isinstance(saved, Mapping):
        return any(_holds_module(value) for value in saved.values())
    return isinstance(saved, nn.Module)


def _holds_tensors(saved: Any) -> bool:
    if isinstance(saved, Mapping):
        return any(_holds_tensors(value) for value in saved.values())
    return isinstance(saved, nn.Module | Tensor)
