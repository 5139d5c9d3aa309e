"""The host's time in Python around an operator, which a recorder below it does not see.

It is of dispatch modes at every operator, views too, and of hooks at each tensor that is saved for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass
class Overhead:
    """The number of dispatch modes that were entered within `interposing` and not left yet, and of tensors that hooks were given."""

    modes: int = 0
    packed: int = 0

    def packed_since(self) -> int:
        """Tensors that hooks were given since this was last asked."""
        packed, self.packed = self.packed, 0
        return packed


@contextmanager
def interposing() -> Iterator[Overhead]:
    """Temporarily count the modes and the tensors that are handed to hooks.

    >>> x = torch.ones(2, requires_grad=True)
    >>> with interposing() as around, torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
    ...     _ = x * x
    >>> around
    Overhead(modes=0, packed=2)
    """
    overhead = Overhead()
    hooks: Any = torch._C._autograd  # which tests/unit/planner/trace/test_python_overhead.py watches
    push = hooks._push_saved_tensors_default_hooks

    def pushed(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        def counted(tensor: Tensor) -> Any:
            overhead.packed += 1
            return pack(tensor)

        push(counted, unpack)

    def entering(name: str, change: int) -> None:
        original: Callable[..., Any] = getattr(TorchDispatchMode, name)

        def counted(self: TorchDispatchMode, *args: object) -> Any:
            overhead.modes += change
            return original(self, *args)

        stack.enter_context(mock.patch.object(TorchDispatchMode, name, counted))

    with ExitStack() as stack:
        entering("__enter__", 1)
        entering("__exit__", -1)
        stack.enter_context(mock.patch.object(hooks, "_push_saved_tensors_default_hooks", pushed))
        yield overhead
