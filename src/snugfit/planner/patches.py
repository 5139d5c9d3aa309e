"""What libraries do otherwise for fake tensors than for real ones, undone."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor, _meta_registrations, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


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
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _applied))
        stack.enter_context(mock.patch.object(_meta_registrations, "_meta_grouped_mm_common", _grouped_product))
        # torch's encoder layers are scored as nested tensors, which cannot be fake
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


_grouped_product_of_bf16 = _meta_registrations._meta_grouped_mm_common


def _grouped_product(left: Tensor, right: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Products of groups of rows, as mixtures of experts have them: fake ones are only taken in bfloat16, real ones in any type."""
    if left.dtype not in (torch.float32, torch.float16):
        return _grouped_product_of_bf16(left, right, *args, **kwargs)
    half = [
        torch.empty_strided(each.shape, each.stride(), dtype=torch.bfloat16, device=each.device)
        for each in (left, right)
    ]
    return _grouped_product_of_bf16(*half, *args, **kwargs).to(left.dtype)


def _applied(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`Module._apply` as it is for parameters that are not fake: each stays what it is and has other data, one after the other.
    Torch exchanges fake ones by their contents, which it then refuses."""
    for child in module.children() if recurse else ():
        child._apply(fn)  # type: ignore[no-untyped-call]
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
    parameter.data = new
    if isinstance(new, FakeTensor):
        parameter.fake_device = new.fake_device  # type: ignore[attr-defined]
    return parameter
