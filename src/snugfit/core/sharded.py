"""Tensors that are spread over devices, each of which has some rows (torch's DTensor): the rows of this rank, and the whole.

A tensor that is not spread is its own part and its own whole, so that nobody has to ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from snugfit.core.layout import is_sharded


def own_part(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, in the same memory and without gradient; one that every rank has whole as it is."""
    sharded: Any = tensor
    part: Tensor = sharded.detach().to_local() if is_sharded(sharded) else tensor
    return part


def own_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this rank has of each."""
    return [own_part(tensor) for tensor in tensors]


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, without gradient: every rank sends its part to the others, and has to call this."""
    sharded: Any = tensor.detach()
    gathered: Tensor = sharded.full_tensor() if is_sharded(sharded) else sharded
    return gathered


def of_part(part: Tensor, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """The tensor, spread as `like` is, of which this rank has `part`; nothing is sent.

    Args:
        shape: of the whole; None for that of `like`.
    """
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    size = torch.Size(shape or like.shape)
    stride = torch.empty(size, device="meta").stride()
    made = DTensor.from_local(
        part, sharded.device_mesh, sharded.placements, run_check=False, shape=size, stride=stride
    )
    return made.to(part.device)  # where weights lie on the host, the mesh is of devices
