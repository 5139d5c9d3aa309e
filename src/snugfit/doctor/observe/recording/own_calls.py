"""Calls of torch that the script itself makes, while updates are looked at in detail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_asked_by_script, is_own

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


def after_own_calls(recorder: Recorder, look: Look, *, inside: bool = False) -> Callable[[Call], Call]:
    """Return what wraps a function such that `look` is told of each call that is looked at and gives a tensor.

    Args:
        inside: whether other watchers wrap the function too, later, so that theirs calls this one.
    """

    def wrapped(original: Call) -> Call:
        name = original.__name__

        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if isinstance(result, Tensor) and (_is_within(recorder) if inside else is_looked_at(recorder)):
                with recorder.guard():
                    look(name, args, kwargs, result)
            return result

        return function

    return wrapped


def _is_within(recorder: Recorder) -> bool:
    """Return whether a wrapper that others wrap looks at the call that it is asked for, which the script makes through them."""
    return (
        recorder.detailed
        and not recorder.looking
        and not torch.compiler.is_dynamo_compiling()
        and recorder.here
        and is_asked_by_script()
    )
