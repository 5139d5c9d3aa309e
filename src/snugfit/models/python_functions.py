"""Models of the user's own code, named as `package.module:function`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.core.random import preserved_randomness, seed_device
from snugfit.errors import ModelError
from snugfit.system.user_objects import describe, import_path, load_object


def load_python_model(
    spec: str,
    *,
    folder: Path | None = None,
    seed: int = 0,
    empty: bool = False,
) -> nn.Module:
    """Build a model by calling the function or class that `spec` names.

    Args:
        folder: where the module is looked for first (the recipe's folder).
        seed: of the weights it draws; the caller's random state is left as it was.
        empty: on the meta device where the function can do without weights.
    Raises:
        ModelError: not found, the call failed, or what came back is no `nn.Module`.
    """
    device = torch.device("cpu")
    with import_path(folder), preserved_randomness(device):
        seed_device(seed, device)
        function = load_object(spec, setting="model", folder=folder, error=ModelError)
        if isinstance(function, nn.Module):
            return copy.deepcopy(function)  # training must not change the user's own object
        if not callable(function):
            raise ModelError(
                "model",
                f"'{spec}' is {type(function).__name__}, not a function that returns a model",
                "Name a function: package.module:function.",
            )
        # again: the import, which only the first call runs, may have drawn numbers of its own
        seed_device(seed, device)
        try:
            model = _without_weights(function) if empty else None
            if model is None:
                model = function()
        except Exception as failure:
            raise ModelError(
                "model", f"'{spec}' failed: {describe(failure)}", "Correct the function."
            ) from failure
    if not isinstance(model, nn.Module):
        raise ModelError(
            "model", f"'{spec}' returned {type(model).__name__}, not a torch.nn.Module", "Return a module."
        )
    return model


def _without_weights(function: Callable[..., Any]) -> Any:
    """Return what it returns where tensors hold nothing; None where it asks for their values."""
    try:
        with torch.device("meta"):
            return function()
    except (RuntimeError, NotImplementedError, ValueError):
        return None
