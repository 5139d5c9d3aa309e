"""Modules that `torch.compile` has wrapped, without the wrapper: names and classes are those of the plain model."""

from __future__ import annotations

from typing import Any

from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """Return `model` with what `torch.compile(module)` wrapped in the wrapper's place; it goes on running compiled.

    The wrapper puts `_orig_mod.` into the names of weights, which neither a plain model nor a pattern of names knows. Compiled in place,
    as `module.compile()` does it, a module keeps its names. Wrappers inside of `model` are replaced in it.

    >>> import torch
    >>> model = unwrapped(torch.compile(nn.Sequential(nn.Linear(2, 1)), backend="eager"))
    >>> list(model.state_dict()), model(torch.ones(1, 2)).shape
    (['0.weight', '0.bias'], torch.Size([1, 1]))
    """
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and _is_wrapper(child) and not _is_wrapper(parent):
                parent._modules[name] = _in_place(child)
    return _in_place(model) if _is_wrapper(model) else model


def _in_place(wrapper: nn.Module) -> nn.Module:
    inner = wrapper
    while _is_wrapper(inner):
        inner = inner._orig_mod  # type: ignore[assignment]

    def call(
        *args: Any, **kwargs: Any
    ) -> Any:  # of torch's own modules torch would compile nothing by themselves
        return inner._call_impl(*args, **kwargs)

    compile: Any = wrapper.dynamo_ctx  # what torch.compile made of its settings
    inner._compiled_call_impl = compile(call)
    return inner


def _is_wrapper(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules
