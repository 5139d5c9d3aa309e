"""Watch what is written and read."""

from __future__ import annotations

import linecache
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import StaleSave
from snugfit.doctor.observe.events.state_events import Load, Resume, Save
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, innermost, is_own, where
from snugfit.doctor.observe.watchers.modules.watch_best import look_at_best_file, look_at_last, look_for_best
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.weights.weights import states_in

_Call = Callable[..., Any]
MOST_PARTS = 64
"""Of a list, which may be one of all rows, so many are looked at."""
MOST_LOOKED = 4096


def watch_files(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record torch.save, torch.load, pickle.dump of modules and tensors, and safetensors' save_file."""
    weights = modules.weights

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
                    modules.loaded.read(read)
                    if optimizer or schedule:
                        recorder.add(Resume(where(), recorder.log.updates, optimizer, schedule, path))
            return read

        return load

    def dumping(original: _Call) -> _Call:
        def dump(*args: Any, **kwargs: Any) -> Any:  # pickle.dump(obj, file), joblib.dump(value, filename)
            if recorder.active and called_directly() and not _is_copied():
                _add("module", next(iter((*args, *kwargs.values())), None), None)
            return original(*args, **kwargs)

        return dump

    def _add(what: str, saved: Any, file: Any) -> None:
        """Note a save; of what pickle writes, only what holds tensors."""
        recorder.quiet += 1
        with recorder.guard():
            if not what or _holds(saved, (nn.Module, Tensor)):
                kind = what or ("module" if _holds(saved, (nn.Module,)) else "state")
                prints = weights.in_saved(saved)
                look_at_last(recorder, prints)
                recorder.add(
                    Save(where(), recorder.log.updates, kind, called_directly(), prints, folder(file))
                )
                look_for_best(recorder)
                look_at_best_file(recorder, file)
                _look_at_age(recorder, modules, saved)
        recorder.quiet -= 1

    def safetensors_imported(module: ModuleType) -> None:
        patches.wrap(module, "save_file", saving)
        patches.wrap(module, "load_file", loading)

    patches.wrap(torch, "save", saving)
    patches.wrap(torch, "load", loading)
    for name in ("dump", "dumps"):
        patches.wrap(pickle, name, dumping)
    patches.after_import("joblib", lambda module: patches.wrap(module, "dump", dumping))
    patches.after_import("safetensors.torch", safetensors_imported)


def _look_at_age(recorder: Recorder, modules: ModuleWatch, saved: Any) -> None:
    """Note a saved state that was taken before the last updates, and holds the tensors that these have moved."""
    taken = modules.own_states.trained_since(states_in(saved), recorder.log.updates)
    if taken:
        recorder.add(StaleSave(taken, recorder.log.updates, where()))


def _is_copied() -> bool:
    """Return whether the line that pickles reads it back at once, as a copy, or measures it."""
    frame = innermost()
    line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return "loads(" in line or "len(" in line


def folder(file: Any) -> str:
    """Return the folder of a file that is named by its path; "" for anything else."""
    return str(Path(file).absolute().parent) if isinstance(file, str | Path) else ""


def _mappings(read: Any) -> list[Any]:
    """Return what stands in a checkpoint by name, one level down."""
    return list(read.values()) if isinstance(read, Mapping) else []


def _holds(saved: Any, kinds: tuple[type, ...]) -> bool:
    """Return whether something of these kinds lies in what is saved, whose objects may hold each other."""
    todo, seen = [saved], set[int]()
    while todo and len(seen) < MOST_LOOKED:
        part = todo.pop()
        if isinstance(part, kinds):
            return True
        if id(part) not in seen:
            seen.add(id(part))
            todo += _parts(part)
    return False


def _parts(saved: Any) -> Iterable[Any]:
    """Return what lies in a container, or in an object of a class of the script."""
    if isinstance(saved, Mapping):
        return list(saved.values())
    if isinstance(saved, list | tuple):
        return saved[:MOST_PARTS]
    code = sys.modules.get(type(saved).__module__)
    own = code is not None and is_own(getattr(code, "__file__", None) or "<none>")
    return (
        list(vars(saved).values())
        if own and hasattr(saved, "__dict__") and not isinstance(saved, nn.Module)
        else ()
    )
