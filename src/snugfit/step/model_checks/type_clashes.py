"""Operands of two types, where a model computes in 16 bits: which module mixes them, and what to do."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from snugfit.errors import SettingError

OF_TYPES = ("dtype", "scalar type")
"""Words of torch about operands of two types."""
_OF_NARROW = (*OF_TYPES, "BFloat16", "Half", "bias type")
_NARROW = (torch.bfloat16, torch.float16)
_LIBRARIES = (Path(str(torch.__file__)).parent, Path(__file__).parents[2])
"""The folders of torch and of this package."""


def check_types(error: Exception, model: nn.Module, device: torch.device) -> None:
    """Say where a forward or a loss mixes types, if a model computes in 16 bits; a failure for another cause is left as it is.

    Raises:
        SettingError: names the innermost module, and the line of the user's code.
    """
    narrow = _narrow_type(model, device)
    if narrow is None or not isinstance(error, RuntimeError):
        return
    if not any(words in str(error) for words in _OF_NARROW):
        return
    name, place = _place(error.__traceback__, model)
    number = str(narrow).removeprefix("torch.")
    raise SettingError(
        "plan.numerics",
        f"computes in {number}, and {name} cannot{place}: {error}",
        f"Bring what it combines to one type there, as x.to(other.dtype) does, have it compute in float32 within "
        f'torch.autocast("{device.type}", enabled=False), or leave {number} out.',
    ) from error


def _narrow_type(model: nn.Module, device: torch.device) -> torch.dtype | None:
    """Return the type of 16 bits that a model computes in: autocast's, or that of its weights."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return next((each.dtype for each in model.parameters() if each.dtype in _NARROW), None)


def _place(trace: TracebackType | None, model: nn.Module) -> tuple[str, str]:
    """Return, in words, the innermost module of the model that an error comes through, and the line of the code that is neither torch's nor ours."""
    names = {module: name for name, module in model.named_modules()}
    owner, place = "the loss", ""
    for frame, line in traceback.walk_tb(trace):
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and module in names:
            kind = type(module).__name__
            owner = f"module '{names[module]}' ({kind})" if names[module] else f"the model ({kind})"
        path = frame.f_code.co_filename
        if not any(Path(path).is_relative_to(folder) for folder in _LIBRARIES):
            place = f" at {path}:{line}"
    return owner, place
