"""Temporary changes of how modules run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.tree import map_tree


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Temporarily let `module` compute `forward`; hooks on it run as before.

    >>> with replaced_forward(layer := nn.Linear(2, 2), lambda inputs: inputs):
    ...     layer(torch.ones(2))
    tensor([1., 1.])
    >>> "forward" in vars(layer)
    False
    """
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


@contextmanager
def taking_any_float(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Temporarily cast floating inputs of `module` to `dtype` at its door.

    >>> with taking_any_float(layer := nn.Linear(2, 2).bfloat16(), torch.bfloat16):
    ...     layer(torch.ones(1, 2)).dtype
    torch.bfloat16
    """

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def cast_inputs(_module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tuple(map_tree(cast, list(args))), map_tree(cast, kwargs)

    hook = module.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Temporarily let torch's encoder layers call their linear layers in evaluation too, in place of reading their weights."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
