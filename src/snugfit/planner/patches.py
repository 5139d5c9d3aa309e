"""What libraries do otherwise for fake tensors than for real ones, undone."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils


@contextmanager
def as_real() -> Iterator[None]:
    """Within, models of fake tensors move and change their type, optimizers choose the kernels over many tensors, and transformers
    takes fake tensors for real ones: for tracing it would build masks that a run does without."""
    with ExitStack() as stack:
        for module in (
            optimizer,
            _foreach_utils,
        ):  # which ask whether the type of each tensor is exactly one of a list
            types = [*module._foreach_supported_types, FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        if importlib.util.find_spec("transformers") is not None:
            from transformers.utils import import_utils

            stack.enter_context(mock.patch.object(import_utils, "is_fake_tensor", return_value=False))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _Applied()))
        yield


class _Applied:
    """`Module._apply` by new parameters: torch exchanges those of fake models by their contents, which it then refuses."""

    def __init__(self) -> None:
        self._made: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # with the old one, so that no other takes its number

    def __get__(self, module: nn.Module, kind: type[nn.Module]) -> Callable[..., nn.Module]:
        def applied(fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
            return self(module, fn, recurse)

        return applied

    def __call__(self, module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(fn)  # type: ignore[no-untyped-call]
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = self._new(tensor, fn)  # type: ignore[assignment]
        return module

    def _new(self, tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
        if id(tensor) not in self._made:
            with torch.no_grad():
                new = fn(tensor)
            if new is not tensor and isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            self._made[id(tensor)] = (tensor, new)
        return self._made[id(tensor)][1]
