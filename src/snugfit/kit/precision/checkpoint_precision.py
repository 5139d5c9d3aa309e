"""The precision that the weights of a checkpoint were made in, whatever they were loaded in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

ATTRIBUTE = "checkpoint_dtype"
"""Of a configuration of transformers, which keeps and saves attributes that it does not know."""


def remember_origin(config: Any, dtype: Any) -> None:
    """Note in the configuration of a loaded model what type its checkpoint says to have, where that is bf16.

    >>> config = type("Config", (), {})()
    >>> remember_origin(config, torch.bfloat16)
    >>> config.checkpoint_dtype
    'bfloat16'
    """
    if str(dtype).removeprefix("torch.") == "bfloat16":
        setattr(config, ATTRIBUTE, "bfloat16")


def forget_origin(config: Any) -> None:
    """Forget the precision of a model whose weights are drawn anew."""
    vars(config).pop(ATTRIBUTE, None)


def made_in_bf16(model: nn.Module) -> bool:
    """Return whether the weights of `model` are in bf16, or come from a checkpoint that was.

    >>> made_in_bf16(nn.Linear(2, 2)), made_in_bf16(nn.Linear(2, 2).bfloat16())
    (False, True)
    """
    config = getattr(model, "config", None)
    config_dtypes = {str(getattr(config, name, None)).removeprefix("torch.") for name in (ATTRIBUTE, "dtype")}
    in_bf16 = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
    return "bfloat16" in config_dtypes or in_bf16
