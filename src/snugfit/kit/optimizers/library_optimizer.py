"""The behaviour that optimizers of other libraries are given in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import MissingExtra, SettingError


def require(package: str) -> None:
    """Check that a package is installed.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, "quantization")


def eager(optimizer: torch.optim.Optimizer) -> AbstractContextManager[Any]:
    """Return both libraries compile their step, for seconds; on a CPU that gains little, and what is fake cannot be compiled."""
    first = optimizer.param_groups[0]["params"][0]
    if first.device.type != "cpu" and not is_fake(first):
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def checked(optimizer: torch.optim.Optimizer, technique: str) -> torch.optim.Optimizer:
    """Return the same optimizer.

    Raises:
        SettingError: a weight is in float64.
    """
    for name, parameter in _named(optimizer):
        if parameter.dtype == torch.float64:
            raise SettingError(
                technique,
                f"computes in float32, and the weight '{name}' is in float64",
                "Convert the model with model.float(), or use optimizer: adamw.",
            )
    return optimizer


def refuse_sparse(optimizer: torch.optim.Optimizer, technique: str) -> None:
    """Refuse gradients that are sparse.

    Raises:
        SettingError: a gradient is sparse.
    """
    for name, parameter in _named(optimizer):
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise SettingError(
                technique,
                f"the gradient of '{name}' is sparse, which states in blocks cannot take",
                "Make the embedding with sparse=False, or use optimizer: sgd.",
            )


def _named(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, nn.Parameter]]:
    for number, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or [f"{number}.{place}" for place, _ in enumerate(group["params"])]
        yield from zip(names, group["params"], strict=True)
