"""Watch functions that drop at random whatever the model's mode is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from snugfit.doctor.observe.events.run_events import ForgottenMode
from snugfit.doctor.observe.events.script_events import ATTENTION, Drop, Forward
from snugfit.doctor.observe.graphs.graph_nodes import mark_mixing
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import script_as
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch

_Call = Callable[..., Any]
MODULES = "torch.nn.modules.dropout"
_OFF_BY_DEFAULT = ("alpha_dropout", "feature_alpha_dropout")
"""Functions that drop nothing where they are not told that the model trains; the others do."""


def watch_dropout(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record what is dropped inside of a model that was switched to evaluation."""

    def note(function: str) -> None:
        with recorder.guard():
            call = next((each for each in reversed(recorder.log.events) if isinstance(each, Forward)), None)
            if call is not None and not call.training and not call.grad:
                recorder.add(Drop(where(), recorder.log.updates, function))

    def dropping(original: _Call) -> _Call:
        drops = original.__name__ not in _OFF_BY_DEFAULT

        def dropout(*args: Any, **kwargs: Any) -> Any:
            seen = not torch.compiler.is_dynamo_compiling() and recorder.active
            given = {**dict(zip(("input", "p", "training"), args, strict=False)), **kwargs} if seen else {}
            looked = seen and modules.inside and given.get("p", 0.5) > 0
            if seen and drops and "training" not in given and not torch.is_grad_enabled():
                module = sys._getframe(1).f_locals.get("self")
                if isinstance(module, nn.Module) and not module.training and given.get("p", 0.5) > 0:
                    with recorder.guard():
                        recorder.add(ForgottenMode(where(), recorder.log.updates, original.__name__))
            if looked:
                if given.get("training", drops) and not torch.is_grad_enabled():
                    note(original.__name__)
                if recorder.detailed and sys._getframe(1).f_globals.get("__name__") != MODULES:
                    modules.note_function_of_mode(f"F.{original.__name__}")
            return original(*args, **kwargs)

        return dropout

    def attending(original: _Call) -> _Call:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            looked = not torch.compiler.is_dynamo_compiling() and recorder.active and modules.inside
            if share and looked and not torch.is_grad_enabled():
                note(ATTENTION)
            result = original(*args, **kwargs)
            if looked and recorder.detailed:
                with recorder.guard():
                    mark_mixing(result, where())
            return result

        return scaled_dot_product_attention

    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        patches.wrap(functional, name, dropping)
    in_c = functional.scaled_dot_product_attention
    patches.wrap(functional, ATTENTION, attending)
    script_as(functional.scaled_dot_product_attention, in_c)
