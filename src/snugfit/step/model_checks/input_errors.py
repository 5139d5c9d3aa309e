"""Inputs that a model's forward refuses: what of the batch it could not take, in the words of the data set that made them."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import LABELS
from snugfit.core.tree import leaves
from snugfit.errors import DataError
from snugfit.step.model_checks.type_clashes import OF_TYPES

_WORDS = defaultdict(
    str,
    {
        torch.float64: "Double",
        torch.float32: "Float",
        torch.float16: "Half",
        torch.bfloat16: "BFloat16",
        torch.int64: "Long",
        torch.int32: "Int",
        torch.int16: "Short",
        torch.int8: "Char",
        torch.uint8: "Byte",
        torch.bool: "Bool",
    },
)
"""Types as torch's messages write them; others have none."""
_OWN_FORWARD = "forward=lambda model, batch: model(…)"


def check_inputs(
    error: Exception, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Say what of a batch made the call of a model fail, where that can be seen; a failure for another cause is left as it is.

    Args:
        error: raised by `model(*args, **kwargs)`.
    Raises:
        DataError: the entries are not the parameters of forward, or inputs are no tensors, or of another floating type than the weights.
    """
    if not isinstance(error, (TypeError, RuntimeError, AttributeError, IndexError)):
        return
    _check_labels(error, model, args, kwargs)
    _check_names(error, model, args, kwargs)
    given = [*((f"input {place + 1}", value) for place, value in enumerate(args)), *kwargs.items()]
    if isinstance(error, (TypeError, AttributeError)):
        for name, value in given:
            if isinstance(value, (list, str)):
                raise DataError(
                    "batch",
                    f"the model's forward gets {_described(value)} as {name}, and fails: {error}",
                    "Return a tensor from the data set, such as torch.tensor(values), or give a collate function that makes one.",
                ) from error
    if any(words in str(error) for words in OF_TYPES):
        _check_types(error, model, given)


def _check_labels(
    error: Exception, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Refuse a forward that takes the labels behind the inputs, and cannot do without them."""
    labels = _place_of_labels(model, args, kwargs)
    if labels is None or (labels.default is not labels.empty and "NoneType" not in str(error)):
        return
    entries = "**" if kwargs else "*"
    raise DataError(
        "batch",
        f"the model's forward gets no {labels.name}, and fails: {error}",
        f"Labels are the loss's alone; where {labels.name} is to be the labels, give forward=lambda model, batch: model({entries}batch). "
        "The loss is computed from the logits that it returns, whatever its own is.",
    ) from error


def _place_of_labels(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.Parameter | None:
    """Return the parameter of forward that the labels would go to, had they been given as a batch has them: by name, or behind the inputs."""
    parameters = inspect.signature(model.forward).parameters
    if kwargs:
        return None if LABELS in kwargs else parameters.get(LABELS)
    by_place = [
        each
        for each in parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return by_place[len(args)] if len(args) == len(by_place) - 1 else None


def _check_names(
    error: Exception, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    forward = inspect.signature(model.forward)
    try:
        forward.bind(*args, **kwargs)
    except TypeError as mismatch:
        takes = ", ".join(
            name
            for name, parameter in forward.parameters.items()
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        )
        if kwargs:
            gives = f"the entries {', '.join(map(str, kwargs))} beside any '{LABELS}'"
        else:
            gives = f"{len(args)} {'input' if len(args) == 1 else 'inputs'}"
        raise DataError(
            "batch",
            f"gives {gives}, and the model's forward takes ({takes}): {mismatch}",
            f"Name the entries as forward's parameters, and the labels '{LABELS}', which are the loss's alone, or give {_OWN_FORWARD}.",
        ) from error


def _check_types(error: Exception, model: nn.Module, given: list[tuple[str, Any]]) -> None:
    floating = (each.dtype for each in model.parameters() if each.is_floating_point())
    own = next(floating, torch.float32)
    for name, tensor in _tensors(given):
        if tensor.is_complex() or tensor.dtype == own or not _is_named(tensor.dtype, error):
            continue
        given_type, weights = (str(each).removeprefix("torch.") for each in (tensor.dtype, own))
        raise DataError(
            "batch",
            f"{name} is in {given_type}, and the model's weights in {weights}: {error}",
            f"Return it in {weights} from the data set, as .to(torch.{weights}) makes it.",
        ) from error


def _is_named(dtype: torch.dtype, error: Exception) -> bool:
    """Return whether torch's message about two types names this one, as its own words do: tokens beside weights are not at fault for others."""
    return _WORDS[dtype] in re.findall(r"\w+", str(error))


def _tensors(given: list[tuple[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs' tensors, those in a floating type first: whole numbers may be what a model looks up."""
    tensors = [(name, tensor) for name, value in given for tensor in leaves(value)]
    return iter(sorted(tensors, key=lambda each: not each[1].is_floating_point()))


def _described(value: list[Any] | str) -> str:
    if isinstance(value, str) or not value:
        return f"a {type(value).__name__}"
    return f"a list of {len(value)}, of which the first is a {type(value[0]).__name__},"
