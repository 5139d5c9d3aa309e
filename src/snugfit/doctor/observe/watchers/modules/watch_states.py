"""Watch what is taken of modules and put into them: states, and averages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.state_events import Average, Restore
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, line_in, own_frames, where
from snugfit.doctor.observe.watchers.modules.watch_best import look_for_best
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.rows.row_digests import tensors_in
from snugfit.doctor.observe.watchers.weights.weights import WITNESSES

_Call = Callable[..., Any]

_COUNTER = "num_batches_tracked"
LEAST_STATES = 3


def look_for_shared_states(recorder: Recorder, states: int) -> None:
    """Note that states of one module which are to differ are kept beside each other, and hold its own tensors."""
    if states >= LEAST_STATES:
        what = f"{states} states of one model, taken after other steps each, are kept beside each other: all hold its own tensors, and so the last weights."
        fix = "states.append({name: each.clone() for name, each in model.state_dict().items()})"
        recorder.add(Fault(where(), recorder.log.updates, "best_not_copied", what, fix))


def watch_states(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record which states are taken, restored and averaged."""

    def taking(original: _Call) -> _Call:
        def state_dict(module: Any, *args: Any, **kwargs: Any) -> Any:
            recorder.wake()
            result = original(module, *args, **kwargs)
            if recorder.active and not args and kwargs.get("destination") is None:
                with recorder.guard():
                    modules.own_states.taken(result, recorder.log.updates, where())
                    if recorder.log.updates:
                        look_for_best(recorder)
                        look_for_shared_states(recorder, modules.own_states.count_of_living(result))
            return result

        return state_dict

    def restoring(original: _Call) -> _Call:
        def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            own, empty = "", False
            recorder.wake()
            if recorder.active:
                with recorder.guard():
                    empty = modules.loaded.takes_of_file() and not state_dict
                    own = modules.own_states.owned(module, state_dict, recorder.log.updates)
            result = original(module, state_dict, *args, **kwargs)
            if not recorder.active:
                return result
            with recorder.guard():
                dtypes = [
                    str(each.dtype) for each in tensors_in(state_dict.values()) if each.is_floating_point()
                ]
                dtype = max(set(dtypes), key=dtypes.count).removeprefix("torch.") if dtypes else ""
                number = recorder.number(module)
                modules.outsiders.restored(number)
                modules.swapped.restored(number)
                first = next(module.parameters(), None)
                if first is not None:
                    modules.swapped.note_put(first, _line_of_put())
                modules.loaded.restored(module)
                modules.loaded.dtypes[number] = dtype
                # counters of batch norms are made up where a state without a version has none
                missing = sum(not each.endswith(_COUNTER) for each in getattr(result, "missing_keys", []))
                foreign = next(iter(getattr(result, "unexpected_keys", [])), "")
                unused = modules.loaded.unused(module.parameters())
                names = module.state_dict() if missing or unused else ()
                entries = sum(not each.endswith(_COUNTER) for each in names)
                if (
                    unused and own == "unchanged"
                ):  # the state of the module itself, into which nothing of a file was put
                    missing, foreign, own = entries, unused, ""
                recorder.add(
                    Restore(
                        where(),
                        recorder.log.updates,
                        number,
                        modules.weights.of_like(module),
                        dtype,
                        missing,
                        entries,
                        foreign,
                        [recorder.number(each) for each in islice(module.parameters(), WITNESSES)],
                        own,
                        empty,
                    )
                )
            return result

        return load_state_dict

    def averaging(original: _Call) -> _Call:
        def update_parameters(module: Any, model: Any) -> None:
            original(module, model)
            with recorder.guard():
                recorder.add(Average(where(), recorder.log.updates, recorder.number(module)))

        return update_parameters

    patches.wrap(Tensor, "copy_", _copying(recorder, modules))
    patches.wrap(nn.Module, "load_state_dict", restoring)
    patches.wrap(nn.Module, "state_dict", taking)
    patches.wrap(AveragedModel, "update_parameters", averaging)


def _copying(recorder: Recorder, modules: ModuleWatch) -> Callable[[_Call], _Call]:
    """Return what wraps the copy into a tensor, which may be a weight."""

    def wrapped(original: _Call) -> _Call:
        def copy_(values: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(values, *args, **kwargs)
            if recorder.log.updates and not recorder.looking and recorder.here:
                with recorder.guard():
                    if values.layout is torch.strided and is_own(sys._getframe(1).f_code.co_filename):
                        modules.swapped.note_put(values, _line_of_put())
            return result

        return copy_

    return wrapped


def _line_of_put() -> str:
    """Return the line of the script that puts weights into a model: where it asks a helper's object for that, its line, not the helper's."""
    frames = list(own_frames(2))
    inner = next((each.f_locals.get("self") for each in frames), None)
    helper = inner is not None and not isinstance(inner, nn.Module) and len(frames) > 1
    return line_in(frames[helper], frames[helper].f_lineno) if frames else ""
