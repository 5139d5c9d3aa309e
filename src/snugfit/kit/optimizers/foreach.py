"""Kernels over many tensors at once.

Torch's `_foreach` and `_amp` kernels are private by name; they are used here and nowhere else, and
tests/unit/kit/optimizers/test_foreach.py tells when one moves. Of tensors that are spread over devices each rank computes its own part.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.kit.sharded_tensors import is_ordinary, own_parts, whole

_FUSED_DEVICES = {"cpu", "cuda", "mps", "xpu"}

CHECKED_AT_ONCE = {"cpu", "cuda", "xpu"}
"""Devices on which torch's kernel for this adds to what earlier calls found. That of MPS (ATen/native/mps/operations/Amp.mm) forgets it,
overlooks where a view begins, and waits for the device."""


def fastest_kernel(device: torch.device) -> dict[str, Any]:
    """Keyword that picks torch's fastest AdamW kernel for parameters on `device`.

    >>> fastest_kernel(torch.device("cpu"))
    {'fused': True}
    """
    return {"fused": True} if device.type in _FUSED_DEVICES else {"foreach": True}


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def scale_(tensors: Sequence[Tensor], factor: Tensor | float) -> None:
    """Multiply all tensors by one factor in place."""
    for group in _by_kind(own_parts(tensors)):
        if isinstance(factor, Tensor):
            torch._foreach_mul_(group, factor.to(group[0].device, group[0].dtype))
        else:
            torch._foreach_mul_(group, factor)


def lerp_(tensors: Sequence[Tensor], targets: Sequence[Tensor], weight: float) -> None:
    """Move each tensor towards its target in place: `tensor + weight * (target - tensor)`."""
    pairs = list(zip(own_parts(tensors), own_parts(targets), strict=True))
    alike = [pair for pair in pairs if pair[0].dtype == pair[1].dtype]
    groups = (_by_kind([pair[place] for pair in alike]) for place in range(2)) if alike else ((), ())
    for tensor_group, target_group in zip(*groups, strict=True):
        torch._foreach_lerp_(tensor_group, target_group, weight)
    for tensor, target in pairs:
        if tensor.dtype != target.dtype:  # one after the other, as each is copied
            tensor.lerp_(target.to(tensor.dtype), weight)


def lerp(tensors: Sequence[Tensor], targets: Sequence[Tensor], weight: float) -> list[Tensor]:
    """Return what `lerp_` gives, and leave the tensors as they are; each target has its tensor's dtype.

    Of tensors that are spread over devices the results are this rank's parts.
    """
    return list(torch._foreach_lerp(own_parts(tensors), own_parts(targets), weight)) if tensors else []


def add_(tensors: Sequence[Tensor], others: Sequence[Tensor], factor: float) -> None:
    """Add `factor` times the other to each tensor in place."""
    if tensors:
        torch._foreach_add_(own_parts(tensors), own_parts(others), alpha=factor)


def sign_(tensors: Sequence[Tensor], width: float = 0.0) -> None:
    """Replace all elements by their sign in place; those up to `width` away from 0 by a slope in between.

    >>> numbers = [torch.tensor([-3.0, 0.0, 0.5])]
    >>> sign_(numbers, width=2.0)
    >>> numbers
    [tensor([-1.0000,  0.0000,  0.2500])]
    """
    if not tensors:
        return
    parts = own_parts(tensors)
    if width == 0:
        torch._foreach_sign_(parts)
        return
    torch._foreach_div_(parts, width)
    torch._foreach_clamp_min_(parts, -1.0)
    torch._foreach_clamp_max_(parts, 1.0)


def copy_(tensors: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its tensor."""
    if tensors:
        torch._foreach_copy_(own_parts(tensors), own_parts(sources))


def count_nonfinite(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return a scalar above 0 when any element is infinite or NaN, on this rank: one kernel for all tensors, nothing read."""
    nonfinite = torch.zeros((), device=device, dtype=torch.float32)  # whatever the default dtype is
    for group in _by_kind(own_parts(tensors)):
        place = group[0].device
        # what a dry run makes is fake, and must not stay in the cache
        pretended = type(group[0]) is not Tensor and is_fake(group[0])
        one = _one.__wrapped__(place) if pretended else _one(place)
        here = nonfinite if place == device else torch.zeros((), device=place, dtype=torch.float32)
        if not _checks_at_once(place, group[0].dtype):
            nonfinite = nonfinite + _nonfinite_by_norm(group).to(device)
            continue
        try:
            torch._amp_foreach_non_finite_check_and_unscale_(group, here, one)
        except NotImplementedError as error:
            _refuse_sparse(group, error)
            raise
        if here is not nonfinite:
            nonfinite = nonfinite + here.to(device)
    return nonfinite


def _nonfinite_by_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return how many tensors of one type and device hold infinity or NaN: their largest magnitude is one."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    if not filled:
        return torch.zeros((), device=tensors[0].device)
    largest = torch.stack([norm.float() for norm in torch._foreach_norm(filled, torch.inf)])
    return largest.isfinite().logical_not().sum()


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm over all elements of all tensors, on all ranks, accumulated in float32 at least.

    Raises:
        SettingError: a gradient is sparse.
    """
    try:
        return _norm(tensors)
    except NotImplementedError as error:
        _refuse_sparse(tensors, error)
        raise


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    if all(tensor.dtype.itemsize >= 4 for tensor in tensors):
        if is_ordinary(tensors) and len(_by_kind(tensors)) == 1:
            # what get_total_norm calls for them, without its search for kinds, which takes as long again
            norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([*tensors], 2.0)))
            return norm
        return whole(torch.nn.utils.get_total_norm(tensors))
    types = [torch.promote_types(tensor.dtype, torch.float32) for tensor in tensors]
    widest = functools.reduce(torch.promote_types, types)
    # one after the other, as a CPU makes each wide
    norms = [torch.linalg.vector_norm(each, dtype=kind) for each, kind in zip(tensors, types, strict=True)]
    return whole(torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms])))


def _refuse_sparse(tensors: Iterable[Tensor], error: NotImplementedError) -> None:
    """Say of which weight the gradient is sparse, where one is: what torch says of it names an operator.

    Raises:
        SettingError: one is.
    """
    sparse = [tuple(tensor.shape) for tensor in tensors if tensor.is_sparse]
    if sparse:
        raise SettingError(
            "model",
            f"the weight of shape {sparse[0]} gets a sparse gradient, and gradients are added up over micro-batches "
            "and ranks as dense ones; nothing was trained",
            "In its forward, call F.embedding and F.embedding_bag with sparse=False, and torch.gather with "
            "sparse_grad=False.",
        ) from error


@functools.cache
def _checks_at_once(device: torch.device, dtype: torch.dtype) -> bool:
    # CUDA's kernel, which was written for the scale of fp16 gradients, takes no bf16
    return device.type in CHECKED_AT_ONCE and (device.type == "cpu" or dtype is not torch.bfloat16)


@functools.cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device, dtype=torch.float32)


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    if not tensors:
        return []
    dtype, device = tensors[0].dtype, tensors[0].device
    for tensor in tensors:
        if tensor.dtype is not dtype or tensor.device != device:
            break
    else:
        return [list(tensors)]
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())
