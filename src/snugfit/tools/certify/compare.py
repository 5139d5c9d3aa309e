"""The distance between two computations of the same, and the module at which they part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.step.model_checks.traceless import Outputs, outputs_recorded
from snugfit.step.step import Step
from snugfit.system.rounding import in_float64

FLOOR = 1e-3
"""A tensor is measured by this part of the length of all tensors at least: one that is zero but for rounding has no error of its own."""


def gradients(step: Step) -> dict[str, Tensor]:
    """Return copies of what the last update was made from; none where the gradients went with it."""
    return {name: each.detach().clone() for name, each in step.gradients().items()}


def weights(step: Step) -> dict[str, Tensor]:
    """Return copies of the parameters."""
    return {name: each.detach().clone() for name, each in step.model.named_parameters()}


def relative_errors(
    actual: Mapping[str, Tensor], reference: Mapping[str, Tensor], floor: float = FLOOR
) -> dict[str, float]:
    """Return the relative L2 error of each tensor; infinite for one that is on one side only or not finite on one side.

    Args:
        floor: the part of the length of all tensors that a tensor is measured by at least.

    >>> one = {"weight": torch.tensor([3.0, 4.0]), "bias": torch.tensor([0.0])}
    >>> other = {"weight": torch.tensor([3.0, 4.5]), "bias": torch.tensor([0.0])}
    >>> relative_errors(other, one)
    {'weight': 0.1, 'bias': 0.0}
    """
    if not reference:
        return dict.fromkeys(actual, torch.inf)
    total = torch.stack([_wide(tensor).norm() for tensor in reference.values()]).norm()
    errors = dict.fromkeys(set(actual) ^ set(reference), torch.inf)
    for name, tensor in reference.items():
        if name not in actual:
            continue
        own, length = _wide(actual[name]), torch.maximum(_wide(tensor).norm(), floor * total)
        error = (own - _wide(tensor)).norm() / length if length > 0 else own.norm()
        errors[name] = torch.nan_to_num(error, nan=torch.inf).item()
    return errors


def without_noise(
    tensors: Mapping[str, Tensor], gradient: Mapping[str, Tensor], noise: float
) -> dict[str, Tensor]:
    """Return the tensors but for those whose gradient is zero but for rounding, such as that of an attention's key bias.

    An optimizer that divides by the gradient's size makes an update of full length of what is noise.

    Args:
        noise: the part of the length of all gradients up to which one is nothing else.
    """
    if not gradient:
        return dict(tensors)
    total = torch.stack([_wide(each).norm() for each in gradient.values()]).norm()
    return {
        name: each
        for name, each in tensors.items()
        if name not in gradient or _wide(gradient[name]).norm() > noise * total
    }


def worst_of(errors: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest error and whose it is; the name is empty where there is none."""
    name = max(errors, key=lambda each: errors[each], default="")
    return (errors[name], name) if name and errors[name] > 0 else (0.0, "")


def worst_weight(apart: Mapping[str, float]) -> tuple[float, str]:
    """Return the worst of the parameters, or of all the rest where they are the same; by its name."""
    weights = {
        path.removeprefix("/parameters/"): e for path, e in apart.items() if path.startswith("/parameters/")
    }
    return worst_of(weights or {path.removeprefix("/"): error for path, error in apart.items()})


def differences(one: Any, other: Any, path: str = "") -> dict[str, float]:
    """Return where two states are not the same bit for bit, by path, with the relative error; infinite for what is no number."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        pairs = [(f"{path}/{key}", one.get(key), other.get(key)) for key in {**one, **other}]
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        pairs = [(f"{path}/{place}", *pair) for place, pair in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, Tensor) and isinstance(other, Tensor):
        return {path: _apart(one, other)} if not _same(one, other) else {}
    else:
        same = type(one) is type(other) and (one == other or (one != one and other != other))
        return {} if same else {path: torch.inf}
    return {name: error for key, a, b in pairs for name, error in differences(a, b, key).items()}


def copied(tree: Any) -> Any:
    """Nested dicts and lists with copies of their tensors."""
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [copied(value) for value in tree]
    return tree.detach().clone() if isinstance(tree, Tensor) else tree


def outputs_of(step: Step, window: Batch) -> Outputs:
    """Return what each module gives for `window`; nothing of the step is changed, and no padding is cut."""
    with outputs_recorded(step.model) as outputs, step.computed(replace(window, padded=0).to(step.device)):
        pass
    return outputs


def parted(one: Outputs, other: Outputs, bound: float, pieces: int = 1) -> str:
    """Return the first module whose outputs differ by more than `bound`; empty where none does.

    Args:
        one: of the window whole.
        other: of the same window in that many micro-batches.
    """
    for name, calls in one.items():
        other_calls = other.get(name, [])
        if len(other_calls) != len(calls) * pieces:
            continue
        for place, output in enumerate(calls):
            parts = other_calls[place :: len(calls)]
            if output.ndim == 0 or any(part.shape[1:] != output.shape[1:] for part in parts):
                continue
            joined = torch.cat(parts)
            if joined.shape == output.shape and _apart(joined, output) > bound:
                return name
    return ""


def described(model: nn.Module, name: str) -> str:
    """Return a module by its name and class.

    >>> described(nn.Sequential(nn.Linear(1, 1)), "0"), described(nn.Linear(1, 1), "")
    ("'0' (Linear)", 'the forward of Linear itself')
    """
    kind = type(model.get_submodule(name)).__name__
    return f"'{name}' ({kind})" if name else f"the forward of {kind} itself"


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # a NaN is the same as a NaN, a zero is not a negative zero's equal bit for bit but nothing is made of its sign
    return bool(torch.equal(one, other) or ((one == other) | ((one != one) & (other != other))).all())


def _wide(tensor: Tensor) -> Tensor:
    """Return it in float64, with imaginary parts as numbers of their own."""
    return in_float64(torch.view_as_real(tensor) if tensor.is_complex() else tensor)


def _apart(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape:
        return torch.inf
    length = _wide(other).norm()
    error = (_wide(one) - _wide(other)).norm() / torch.where(length > 0, length, 1.0)
    return torch.nan_to_num(error, nan=torch.inf).item()
