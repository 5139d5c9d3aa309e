"""Kernels over many tensors at once.

Torch's `_foreach` and `_amp` kernels are private by name; they are used here and nowhere else, and
tests/unit/core/test_foreach.py tells when one moves.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from snugfit.core.read import is_fake


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def scale_(tensors: Sequence[Tensor], factor: Tensor | float) -> None:
    """Multiply all tensors by one factor in place."""
    for group in _by_kind(tensors):
        if isinstance(factor, Tensor):
            torch._foreach_mul_(group, factor.to(group[0].device, group[0].dtype))
        else:
            torch._foreach_mul_(group, factor)


def lerp_(tensors: Sequence[Tensor], targets: Sequence[Tensor], weight: float) -> None:
    """Move each tensor towards its target in place: `tensor + weight * (target - tensor)`."""
    targets = [target.to(tensor.dtype) for tensor, target in zip(tensors, targets, strict=True)]
    for tensor_group, target_group in zip(_by_kind(tensors), _by_kind(targets), strict=True):
        torch._foreach_lerp_(tensor_group, target_group, weight)


def copy_(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its tensor."""
    if tensors:
        torch._foreach_copy_(list(tensors), list(sources))


def count_nonfinite(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """A scalar above 0 when any element is infinite or NaN: one kernel for all tensors, nothing read."""
    found = torch.zeros((), device=device, dtype=torch.float32)  # whatever the default dtype is
    for group in _by_kind(tensors):
        # what a dry run makes is fake, and must not stay in the cache
        one = _one.__wrapped__(device) if is_fake(group[0]) else _one(device)
        torch._amp_foreach_non_finite_check_and_unscale_(group, found, one)
    return found


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm over all elements of all tensors, accumulated in float32 at least."""
    wide = [tensor if tensor.dtype.itemsize >= 4 else tensor.float() for tensor in tensors]
    return torch.nn.utils.get_total_norm(wide)


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device, dtype=torch.float32)


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    if len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1:
        return [list(tensors)]
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
