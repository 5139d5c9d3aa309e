"""Calls of torch that the script itself makes, while updates are looked at in detail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own

Call: TypeAlias = Callable[..., Any]
Look: TypeAlias = Callable[[str, tuple[Any, ...], Mapping[str, Any], Tensor], None]
"""What is told of a call: the name of its function, its arguments by place and by name, and the tensor that it gave."""


def is_looked_at(recorder: Recorder, frames: int = 1) -> bool:
    """Return whether a wrapper looks at the call that it is asked for.

    Those of libraries, of the observer, of other threads and within a compilation are not.

    Args:
        frames: between the function that asks and the one that called for it; 1 where the wrapper itself asks.
    """
    return (
        recorder.detailed
        and not recorder.looking
        and not torch.compiler.is_dynamo_compiling()
        and is_own(sys._getframe(frames + 1).f_code.co_filename)
        and recorder.here
    )


def after_own_calls(recorder: Recorder, look: Look) -> Callable[[Call], Call]:
    """Return what wraps a function such that `look` is told of each call that is looked at and gives a tensor."""

    def wrapped(original: Call) -> Call:
        name = original.__name__

        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if isinstance(result, Tensor) and is_looked_at(recorder):
                with recorder.guard():
                    look(name, args, kwargs, result)
            return result

        return function

    return wrapped
