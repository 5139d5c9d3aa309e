"""The arguments of a step, as it takes them: a module whose gradients it can add up, else refused before anything is trained, without the wrapper of `torch.compile`; rows of a micro-batch; counts of classes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from snugfit.core.job import AUTO
from snugfit.core.technique import Stage, Technique
from snugfit.errors import SettingError

ClassCounts = Mapping[str, int] | Sequence[int] | Tensor
"""Rows by the name of their class, or in the order of the labels, such as `torch.bincount` gives them."""


def check_micro_batch(micro_batch: object) -> None:
    """Refuse a size of micro-batches that is no whole number above 0, but for None.

    Raises:
        SettingError: says how a run finds one.
    """
    if micro_batch is not None and (not isinstance(micro_batch, int) or micro_batch < 1):
        auto = " A run finds it: train(…, micro_batch='auto'); or ask snugfit.step.find_micro_batch.find_micro_batch(step, window)."
        raise SettingError(
            "micro_batch",
            f"must be at least 1 and whole, or None, found {micro_batch!r}",
            auto if str(micro_batch) == AUTO else "Give such a number.",
        )


def check_module(model: object) -> None:
    """Refuse a model that is no module, such as the function or the class that makes it.

    Raises:
        SettingError: says what it is.
    """
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) or inspect.isroutine(model):
        kind = "class" if isinstance(model, type) else "function"
        raise SettingError(
            "model",
            f"got the {kind} {model.__name__}, expected an nn.Module",
            f"Call it: {model.__name__}(…).",
        )
    raise SettingError(
        "model", f"got a {type(model).__name__}, expected an nn.Module", "Give the module itself."
    )


def check_has_numbers(model: nn.Module) -> None:
    """Refuse a model that was made on the meta device.

    Raises:
        SettingError: names the first of its weights and buffers that is there.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise SettingError(
                "model",
                f"'{name}' is on the meta device, where tensors have a shape and no numbers",
                "Make the model without torch.device('meta'), or give it numbers: model.to_empty(device='cpu') and its weights.",
            )


def check_trainable(model: nn.Module) -> None:
    """Refuse a model without weights, sparse gradients, complex parameters, weights that forward changes, and layers that have no weights yet.

    Raises:
        SettingError: names the module or the parameter, and says what to give instead.
    """
    if next(model.parameters(), None) is None:
        raise SettingError(
            "model",
            f"is a {type(model).__name__} without parameters, so there is nothing to train",
            "Give a module that registers its weights: in its attributes, an nn.ModuleList or an nn.ModuleDict, as a list or a dict hides them.",
        )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise SettingError(
                "model",
                f"'{name}' has no shape yet, as a lazy layer's before its first batch",
                "Run a batch through the model first.",
            )
        if parameter.is_complex() and parameter.requires_grad:
            raise SettingError(
                "model",
                f"'{name}' is complex, and parameters are expected to be real",
                "Keep it as nn.Parameter(torch.view_as_real(weight)) and take torch.view_as_complex of it in forward.",
            )
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise SettingError(
                "model",
                f"'{name or type(module).__name__}' has max_norm, which changes weights in forward, also of windows "
                "that make no update",
                "Leave it out, and scale the embedded rows in forward.",
            )
        sparse = isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
        if sparse and module.weight.requires_grad:
            raise SettingError(
                "model",
                f"'{name or type(module).__name__}' gives sparse gradients, which cannot be added up over micro-batches "
                "and ranks",
                "Make it with sparse=False.",
            )


def check_trains(parameters: Sequence[nn.Parameter], techniques: Sequence[Technique]) -> None:
    """Refuse a model of which every parameter is frozen.

    Raises:
        SettingError: names the technique that freezes them, if one does.
    """
    if not any(parameter.requires_grad for parameter in parameters):
        by = [each.card.name for each in techniques if Stage.QUANTISE in each.card.stages]
        hint = f"{by[0]} freezes what it quantises: add adapters, such as lora." if by else ""
        raise SettingError(
            "model",
            "has no parameter that requires a gradient, so there is nothing to train",
            hint or "Unfreeze what is to train.",
        )


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


def counts_by_name(counts: ClassCounts | None) -> dict[str, int] | None:
    """Return the counts by the names of the classes, in the order of the labels; without names, a class has its label's number for one.

    Raises:
        SettingError: they are in another form.

    >>> counts_by_name([5, 9, 2])
    {'0': 5, '1': 9, '2': 2}
    """
    if counts is None:
        return None
    given: Any = counts.tolist() if hasattr(counts, "tolist") else counts
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and len(given) > 0
    if isinstance(given, Mapping) or is_list:
        by_name = dict(given) if isinstance(given, Mapping) else {str(k): v for k, v in enumerate(given)}
        if all(isinstance(each, Integral) and int(each) >= 0 for each in by_name.values()):
            return {str(name): int(count) for name, count in by_name.items()}
    raise SettingError(
        "class_counts",
        f"must be whole numbers of rows, found {counts!r}",
        "Give them by the name of their class, {'no': 900, 'yes': 100}, or in the order of the labels, [900, 100].",
    )
