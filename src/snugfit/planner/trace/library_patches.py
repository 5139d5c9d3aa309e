"""Corrections of what libraries do otherwise for fake tensors than for real ones."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor, _meta_registrations, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from snugfit.kit.placement import set_data_


@contextmanager
def as_real() -> Iterator[None]:
    """Temporarily let torch and transformers handle models of fake tensors as they handle real ones.

    Models of fake tensors move and change their type, optimizers choose the kernels over many tensors, and
    transformers takes fake tensors for real ones: for tracing it would build masks that a run does without.
    Libraries that are loaded within make their constants of real tensors, which stay with them.
    """
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
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _applied))
        stack.enter_context(mock.patch.object(FakeTensor, "__deepcopy__", _copied, create=True))
        stack.enter_context(
            mock.patch.object(_meta_registrations, "_meta_grouped_mm_common", _grouped_product)
        )
        stack.enter_context(mock.patch.object(torch._VF, "_pad_packed_sequence", _padded))
        with _disable_current_modes():  # loads what it needs itself
            stack.enter_context(mock.patch.object(SourceFileLoader, "exec_module", _loaded))
        # torch's encoder layers are scored as nested tensors, which cannot be fake
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


_load = SourceFileLoader.exec_module
_compile = torch.compile


def _loaded(loader: SourceFileLoader, module: ModuleType) -> None:
    """Load a module as if nobody watched. Functions that it compiles are compiled when they are called, which a dry run does not do."""
    with _disable_current_modes(), mock.patch.object(torch, "compile", _compiled_when_called):
        _load(loader, module)


def _compiled_when_called(model: Any = None, **settings: Any) -> Any:
    """Return a function as `torch.compile` does, which loads a compiler of its own at once: more than half of bitsandbytes' import.

    Args:
        model: the function, which torch calls so, and libraries may too.
    """
    if model is None:
        return partial(_compiled_when_called, **settings)
    if not inspect.isfunction(model):
        return _compile(model, **settings)
    compiled = cache(lambda: _compile(model, **settings))
    return wraps(model)(lambda *args, **kwargs: compiled()(*args, **kwargs))


def _padded(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """Sequences with their padding as torch makes them, whose C++ writes the lengths into memory that fake tensors lack."""
    sizes: list[int] = batch_sizes.tolist()
    output = data.new_full((max(len(sizes), total_length), sizes[0], *data.shape[1:]), padding)
    step = start = 0
    for size, run in itertools.groupby(sizes):
        count = len(list(run))
        rows = data[start : start + count * size].view(count, size, *data.shape[1:])
        output[step : step + count, :size].copy_(rows)
        step, start = step + count, start + count * size
    lengths = torch.tensor([sum(size > row for size in sizes) for row in range(sizes[0])])
    return output.transpose(0, 1) if batch_first else output, lengths


_grouped_product_of_bf16: Any = _meta_registrations._meta_grouped_mm_common


def _grouped_product(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Products of groups of rows, as mixtures of experts have them: fake ones are only taken in bfloat16, real ones in any type."""
    if left.dtype not in (torch.float32, torch.float16):
        product: Tensor = _grouped_product_of_bf16(left, right, *args, **kwargs)
        return product
    half = [
        torch.empty_strided(each.shape, each.stride(), dtype=torch.bfloat16, device=each.device)
        for each in (left, right)
    ]
    in_bf16: Tensor = _grouped_product_of_bf16(*half, *args, **kwargs)
    return in_bf16.to(left.dtype)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a copy by value.

    Torch would read the memory that a fake tensor lacks, and would copy the gradient of a fake parameter,
    which it takes for a tensor.
    """
    if id(tensor) not in memo:
        copied = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(copied, tensor.requires_grad)
            if is_parameter
            else copied.requires_grad_(tensor.requires_grad)
        )
    duplicate: Tensor = memo[id(tensor)]
    return duplicate


def _applied(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Apply `fn` to the tensors of a module as `Module._apply` does to those that are not fake.

    Each parameter stays what it is and has other data, one after the other. Torch exchanges fake ones by
    their contents, which it then refuses.
    """
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = _with_data(parameter, fn)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)
    return module


def _with_data(parameter: nn.Parameter, fn: Callable[[Tensor], Tensor]) -> nn.Parameter:
    with torch.no_grad():
        new = fn(parameter)
    if new is parameter:
        return parameter
    if is_traceable_wrapper_subclass(parameter):
        return nn.Parameter(new, parameter.requires_grad)
    set_data_(parameter, new)
    return parameter
