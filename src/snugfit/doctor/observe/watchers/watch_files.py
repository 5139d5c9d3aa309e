"""Watch what is written and read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.best_scores import unnoted_best
from snugfit.doctor.observe.run_events import BestNotNoted
from snugfit.doctor.observe.script_events import Load, Resume, Save
from snugfit.doctor.observe.watchers.watch_log import Recorder, called_directly, line_in, own_frames, where
from snugfit.doctor.observe.weights import Weights

_Call = Callable[..., Any]
MOST_FRAMES = 4


def watch_files(recorder: Recorder, weights: Weights, patches: Patches) -> None:
    """Record torch.save, torch.load, pickle.dump of modules and tensors, and safetensors' save_file."""

    def saving(original: _Call) -> _Call:
        def save(*args: Any, **kwargs: Any) -> Any:
            recorder.wake()
            if recorder.active:
                given = (*args, *kwargs.values())
                _add("", next(iter(given), None), given[1] if len(given) > 1 else None)
            return original(*args, **kwargs)

        return save

    def loading(original: _Call) -> _Call:
        def load(*args: Any, **kwargs: Any) -> Any:
            recorder.wake()
            if recorder.active and kwargs.get("weights_only") is False:
                with recorder.guard():
                    recorder.add(Load(where(), recorder.log.updates, called_directly()))
            read = original(*args, **kwargs)
            if recorder.active and called_directly():
                with recorder.guard():
                    held = [each for each in (read, *_mappings(read)) if isinstance(each, Mapping)]
                    optimizer = any({"state", "param_groups"} <= set(each) for each in held)
                    schedule = any("last_epoch" in each and "param_groups" not in each for each in held)
                    path = folder(next(iter((*args, *kwargs.values())), None))
                    if optimizer or schedule:
                        recorder.add(Resume(where(), recorder.log.updates, optimizer, schedule, path))
            return read

        return load

    def dumping(original: _Call) -> _Call:
        def dump(obj: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active and called_directly():
                _add("module", obj, None)
            return original(obj, *args, **kwargs)

        return dump

    def _add(what: str, saved: Any, file: Any) -> None:
        """Note a save; of what pickle writes, only what holds tensors."""
        recorder.quiet += 1
        with recorder.guard():
            if not what or _holds_tensors(saved):
                kind = what or ("module" if _holds_module(saved) else "state")
                prints = weights.in_saved(saved)
                recorder.add(
                    Save(where(), recorder.log.updates, kind, called_directly(), prints, folder(file))
                )
                _look_for_best(recorder)
        recorder.quiet -= 1

    def safetensors_imported(module: ModuleType) -> None:
        patches.wrap(module, "save_file", saving)

    patches.wrap(torch, "save", saving)
    patches.wrap(torch, "load", loading)
    patches.wrap(pickle, "dump", dumping)
    patches.after_import("safetensors.torch", safetensors_imported)


def _look_for_best(recorder: Recorder) -> None:
    """Note a best score that a condition around the save compares with, and that nothing sets."""
    for frame in own_frames(MOST_FRAMES):
        name = unnoted_best(frame.f_code.co_filename, frame.f_lineno)
        if name:
            recorder.add(BestNotNoted(line_in(frame, frame.f_lineno), recorder.log.updates, name))
            return


def folder(file: Any) -> str:
    """Return the folder of a file that is named by its path; "" for anything else."""
    return str(Path(file).absolute().parent) if isinstance(file, str | Path) else ""


def _mappings(read: Any) -> list[Any]:
    """Return what stands in a checkpoint by name, one level down."""
    return list(read.values()) if isinstance(read, Mapping) else []


def _holds_module(saved: Any) -> bool:
    if isinstance(saved, Mapping):
        return any(_holds_module(value) for value in saved.values())
    return isinstance(saved, nn.Module)


def _holds_tensors(saved: Any) -> bool:
    if isinstance(saved, Mapping):
        return any(_holds_tensors(value) for value in saved.values())
    return isinstance(saved, nn.Module | Tensor)
