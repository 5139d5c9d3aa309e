"""A model's structure without its numbers."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from snugfit.errors import ModelError


def skeleton(model: nn.Module, without: Iterable[nn.Module] = ()) -> nn.Module:
    """Return a copy of `model` on the meta device, where tensors hold nothing; those that are shared stay shared.

    What a module holds besides is copied too, or where that cannot be, such as a lock, is the model's own.

    Args:
        without: modules of it that are not copied; an empty one stands in the place of each.
    Raises:
        ModelError: a parameter has no shape yet, or is held outside of Python.

    >>> skeleton(nn.Linear(2, 1)).weight
    Parameter containing:
    tensor(..., device='meta', size=(1, 2), requires_grad=True)
    """
    _check(model)
    memo = bare_tensors(model)
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                # neither parameter nor buffer, and often no leaf; a forward may write to it
                memo.setdefault(id(value), value.detach().clone())
    memo |= {id(module): nn.Identity() for module in without}
    try:
        return deep_copy(model, memo)
    except Exception:  # noqa: BLE001 - a class that cannot be copied may say so in any way
        return deep_copy(model, {**memo, **_uncopied(model, memo)})


def deep_copy(model: nn.Module, made: Mapping[int, Any]) -> nn.Module:
    """Return a copy of a model, with what was made for parts of it by their ids.

    A module holds a dozen containers of hooks, nearly all of them empty. These are made, since to copy them by the protocol of pickle takes
    longer than all else.
    """
    empty = {
        id(value): type(value)()
        for module in model.modules()
        for value in vars(module).values()
        if type(value) in (OrderedDict, set) and not value
    }
    return copy.deepcopy(model, {**empty, **made})


def fill_(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a skeleton its parameters and buffers by name; those that are shared stay shared.

    >>> made = skeleton(nn.Linear(1, 1, bias=False))
    >>> fill_(made, {"weight": torch.ones(1, 1)})
    >>> made.weight
    Parameter containing:
    tensor([[1.]], requires_grad=True)
    """
    made: dict[int, Tensor] = {}
    names = dict(
        chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    )
    for name, bare in names.items():
        if name in tensors and id(bare) not in made:
            content = tensors[name].detach()
            made[id(bare)] = (
                nn.Parameter(content, bare.requires_grad) if isinstance(bare, nn.Parameter) else content
            )
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and id(tensor) in made:
                    held[name] = made[id(tensor)]  # type: ignore[assignment]


def made_anew(model: nn.Module) -> nn.Module:
    """Return a copy of `model` with tensors that are not filled, on the host; in a dry run they are of its mode, and take no memory."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        copied = skeleton(model)
    made: dict[int, Tensor] = {}
    named = chain(
        copied.named_parameters(remove_duplicate=False), copied.named_buffers(remove_duplicate=False)
    )
    fill_(copied, {name: made.setdefault(id(bare), like(bare, _on_host)) for name, bare in named})
    return copied


def _on_host(plain: Tensor) -> Tensor:
    return torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype, device="cpu")


def bare_tensors(model: nn.Module) -> dict[int, Any]:
    """Return for each parameter and buffer of a model, by its id, the same on the meta device."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(model):
        if id(tensor) not in memo:
            memo[id(tensor)] = like(tensor, lambda plain: plain.detach().to("meta"))
    return memo


def like(tensor: Tensor, made: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of the same kind, whose plain parts are `made` anew."""
    new: Tensor
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        held = {name: getattr(tensor, name) for name in names}
        # a DTensor names its mesh too
        parts = {name: like(each, made) if isinstance(each, Tensor) else each for name, each in held.items()}
        new = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    else:
        new = made(tensor)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(new, tensor.requires_grad)
    return new


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        held = chain(module._parameters.values(), module._buffers.values())
        yield from (tensor for tensor in held if tensor is not None)


def _check(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                "model",
                f"'{name or type(module).__name__}' is a TorchScript module, which keeps its tensors outside of Python",
                "Plan the module that it was made of.",
            )
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(
                "model",
                f"'{name}' has no shape yet, as its layer is lazy",
                "Run the model once on a batch before it is planned.",
            )


def _uncopied(model: nn.Module, memo: Mapping[int, Any]) -> dict[int, Any]:
    """Return what modules hold that no copy can be made of, by its id."""
    originals: dict[int, Any] = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters", "_buffers"):
                continue
            try:
                copy.deepcopy(value, {**memo, id(module): module})
            except Exception:  # noqa: BLE001
                originals[id(value)] = value
    return originals
