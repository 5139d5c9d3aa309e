"""Explanations of what cannot be run on tensors that have no numbers: the operator, and the line of the user's code that asked for it."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from snugfit.errors import Untraceable, UserError

_INSTEAD = "The planner can measure instead, on the device itself: probe=True."

_BY_MESSAGE = (
    (r"\.(numpy|tolist)\(\) is not supported for tensor subclasses", "needs the numbers of a tensor"),
    (
        r"Cannot access data pointer of Tensor|its data is not allocated yet",  # recurrent layers on packed sequences
        "reads the memory of a tensor",
    ),
    (r"NestedTensorImpl", "makes a nested tensor, of which torch has no version without numbers"),
    (r"no fake impl|register_fake|meta kernel|'Meta' backend", "has no version without numbers"),
)
"""What plain errors of torch say where a tensor has no numbers, and what that comes to."""

_PYTHON = sysconfig.get_path("stdlib")


@contextmanager
def explaining() -> Iterator[None]:
    """Temporarily explain what cannot be run on tensors without numbers in the user's terms.

    Raises:
        Untraceable: names the operator, and the file and line that asked for it.
    """
    try:
        yield
    except Exception as error:
        explanation = explained(error)
        if explanation is None:
            raise
        raise explanation from error


def explained(error: BaseException) -> UserError | None:
    """Return the error in the user's terms; None where it does not come from tensors without numbers."""
    cause: BaseException | None = error
    while cause is not None:
        reason = _reason(cause)
        if reason is not None:
            return Untraceable(
                "model",
                f"the planner runs it on tensors that have a shape and no numbers, and {reason}{_place(cause)}",
                _INSTEAD,
            )
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def _reason(error: BaseException) -> str | None:
    """Return the operator, and what it lacks."""
    if isinstance(error, DataDependentOutputException):
        return (
            f"'{error.func}' gives a number that depends on them, as item(), float() and `if` on a tensor do"
        )
    if isinstance(error, DynamicOutputShapeException):
        return f"'{error.func}' gives a tensor whose shape depends on them"
    if isinstance(error, UnsupportedOperatorException):
        return f"'{error.func}' says nothing about what it gives for such: register one with torch.library.register_fake"
    if isinstance(error, UnsupportedFakeTensorException):
        return f"it holds a tensor of a kind that has none such ({error.reason})"
    if not isinstance(error, (RuntimeError, NotImplementedError)):
        return None
    text = str(error)
    for pattern, lacking in _BY_MESSAGE:
        if re.search(pattern, text):
            return f"{_operator(text)} {lacking}"
    return None


def _operator(text: str) -> str:
    named = re.search(r"\.(?:numpy|tolist)\(\)|\b[A-Za-z_]\w*::\w+(?:\.\w+)?", text)
    return f"'{named[0]}'" if named else "an operator"


def _place(error: BaseException) -> str:
    """Return the last line of the user's code, else of a model of transformers, else of torch's layers and optimizers; a backward has none."""
    frames: dict[str | None, traceback.FrameSummary] = {}
    for each in traceback.extract_tb(error.__traceback__):
        frames[_library(each.filename)] = each
    last = next(
        (frames[kind] for kind in (None, "transformers", "torch.nn", "torch.optim") if kind in frames), None
    )
    if last is None:
        return ""
    return f" ({last.filename}:{last.lineno}{f': `{last.line}`' if last.line else ''})"


def _library(filename: str) -> str | None:
    """Return which library a file is of, Python's own among them; None for the user's code, other packages included."""
    if filename.startswith("<"):
        return "python"
    path = Path(filename)
    for name, folders in _folders().items():
        if any(path.is_relative_to(folder) for folder in folders):
            return name
    return "python" if path.is_relative_to(_PYTHON) and "site-packages" not in path.parts else None


@cache
def _folders() -> dict[str, list[str]]:
    specs = {
        name: find_spec(name) for name in ("torch.nn", "torch.optim", "torch", "transformers", "snugfit")
    }
    return {
        name: list(spec.submodule_search_locations or ()) for name, spec in specs.items() if spec is not None
    }
