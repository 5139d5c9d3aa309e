"""How a tensor lies in memory, and over devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def laid_out_like(parameter: torch.Tensor, kept: Any) -> Any:
    """The same state, in which each tensor of the parameter's shape has the parameter's strides, on its own device.

    >>> parameter, moment = torch.zeros(3, 2).t(), torch.zeros(2, 3)
    >>> laid_out_like(parameter, {"moment": moment})["moment"].stride()
    (1, 2)
    """
    if isinstance(kept, dict):
        return {name: laid_out_like(parameter, value) for name, value in kept.items()}
    if type(kept) is not type(parameter.data) or kept.shape != parameter.shape:
        return kept  # no moment; or one in a format of its own, whose blocks do not lie like the weight
    if kept.stride() == parameter.stride():
        return kept
    return torch.empty_like(parameter, dtype=kept.dtype, device=kept.device).copy_(kept)


def whole_tensor(tensor: Tensor, kept: bool = True) -> Tensor:
    """A tensor itself, or what the parts of all ranks are together, in the host's memory; all ranks ask, and one that has no use for it gets
    an empty one."""
    if not is_sharded(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole.cpu() if kept else whole.new_empty(0)


def sharded_like(own: Any, whole: Any) -> Any:
    """This rank's parts of the tensors of a state, where they are parts in the state of its own beside it."""
    if isinstance(own, dict) and isinstance(whole, dict):
        return {key: sharded_like(own.get(key), value) for key, value in whole.items()}
    if isinstance(own, (list, tuple)) and isinstance(whole, (list, tuple)) and len(own) == len(whole):
        return type(whole)(map(sharded_like, own, whole))
    if not isinstance(whole, Tensor) or not is_sharded(own) or is_sharded(whole) or own.shape != whole.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    # each rank has read the whole, so that nothing is sent
    placed = whole.to(own.device_mesh.device_type)
    return distribute_tensor(placed, own.device_mesh, own.placements, src_data_rank=None).to(own.device)


def spread_state(parameter: Tensor, kept: Any) -> Any:
    """This rank's parts of what an optimizer keeps of a parameter that is spread over ranks, in dicts and lists of any depth.

    What has the parameter's shape is spread as it is; what was made of its rows or columns is whole on each rank, as it is where it is made
    there. Counters stay as they are, and so does all where the parameter is not spread.
    """
    if not is_sharded(parameter):
        return kept
    if isinstance(kept, dict):
        return {key: spread_state(parameter, value) for key, value in kept.items()}
    if isinstance(kept, (list, tuple)):
        return type(kept)(spread_state(parameter, value) for value in kept)
    if not isinstance(kept, Tensor) or is_sharded(kept) or kept.ndim != parameter.ndim or kept.ndim == 0:
        return kept
    if kept.shape == parameter.shape:
        return sharded_like(parameter, kept)
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    mesh = sharded.device_mesh
    return DTensor.from_local(kept.to(parameter.device), mesh, [Replicate()] * mesh.ndim, run_check=False)


def is_sharded(tensor: Any) -> bool:
    """Whether it is this rank's part of a tensor."""
    return hasattr(tensor, "full_tensor")
