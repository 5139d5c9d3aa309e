"""Tensors that are spread over devices, each of which has some rows (torch's DTensor): the rows of this rank, and the whole.

A tensor that is not spread is its own part and its own whole, so that nobody has to ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def is_sharded(tensor: Any) -> bool:
    """Return whether it is this rank's part of a tensor."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor, in the same memory and without gradient; one that every rank has whole as it is."""
    sharded: Any = tensor
    part: Tensor = sharded.detach().to_local() if is_sharded(sharded) else tensor
    return part


def own_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return what this rank has of each."""
    tensors = list(tensors)
    if is_ordinary(tensors):
        return tensors
    return [tensor if type(tensor) is Tensor else own_part(tensor) for tensor in tensors]


def is_ordinary(tensors: Iterable[Tensor]) -> bool:
    """Return whether each is of torch's own class: whole, with numbers, and no parameter."""
    return _ORDINARY.issuperset(map(type, tensors))


_ORDINARY = frozenset({Tensor})


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, without gradient: every rank sends its part to the others, and has to call this."""
    sharded: Any = tensor.detach()
    if is_sharded(sharded) and _is_of_rows(sharded):
        return of_rows(sharded.to_local(), sharded.device_mesh, sharded.shape)
    gathered: Tensor = sharded.full_tensor() if is_sharded(sharded) else sharded
    return gathered


def _is_of_rows(sharded: Any) -> bool:
    """Return whether ranks along the last axis of the mesh have some rows each; a norm is a sum of what each rank has instead."""
    from torch.distributed.tensor import Shard

    *copies, last = sharded.placements
    return type(last) is Shard and last.dim == 0 and all(each.is_replicate() for each in copies)


def of_part(part: Tensor, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return the tensor, spread as `like` is, of which this rank has `part`; nothing is sent.

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


def of_rows(rows: Tensor, mesh: DeviceMesh, shape: torch.Size) -> Tensor:
    """Return the whole of a tensor of which the ranks along the last axis of the mesh have some rows each; all of them call it.

    `DTensor.full_tensor` gathers by an exchange that may end a process on CPUs: two threads of gloo both free its name, which
    is too long to lie in place (docs/architecture/ranks.md). That of `all_gather` is not.
    """
    ranks = mesh.size(mesh.ndim - 1)
    sent, count = rows.detach().contiguous(), math.ceil(shape[0] / ranks)
    if sent.shape[0] < count:  # the last ranks have fewer, or none
        sent = torch.cat([sent, sent.new_zeros(count - sent.shape[0], *shape[1:])])
    gathered = sent.new_empty(count * ranks, *shape[1:])
    if gathered.numel():
        all_gather(gathered, sent, group=mesh.get_group(mesh.ndim - 1))
    return gathered[: shape[0]]


def all_gather(
    gathered: Tensor, part: Tensor, group: dist.ProcessGroup, async_op: bool = False
) -> dist.Work | None:
    """Put the parts of all ranks of a group one behind the other into `gathered`."""
    # its name since torch 2.13, and the one before
    exchange = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work: dist.Work | None = exchange(gathered, part, group=group, async_op=async_op)
    return work


def row_of(row: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return a tensor with a row for each rank of the mesh, of which this rank has `row`; nothing is sent."""
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(row[None], mesh, [Shard(0)], run_check=False)


def own_row(rows: Tensor, rank: int, ranks: int) -> Tensor:
    """Return this rank's row of a tensor with one for each rank; where other ranks made it, this one's share of the sum of theirs.

    >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> own_row(rows, rank=1, ranks=2), own_row(rows, rank=1, ranks=4)
    (tensor([3., 4.]), tensor([1.0000, 1.5000]))
    """
    if is_sharded(rows):
        return own_part(rows)[0]
    return rows[rank] if rows.shape[0] == ranks else rows.sum(0) / ranks


def sharded_like(own: Any, whole: Any) -> Any:
    """Return this rank's parts of the tensors of a state, where they are parts in the state of its own beside it."""
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


def spread_state(parameter: Tensor, state: Any) -> Any:
    """Return this rank's parts of what an optimizer keeps of a parameter that is spread over ranks, in dicts and lists of any depth.

    What has the parameter's shape is spread as it is; what was made of its rows or columns is whole on each rank, as it is where it is made
    there. Counters stay as they are, and so does all where the parameter is not spread.
    """
    if not is_sharded(parameter):
        return state
    if isinstance(state, dict):
        return {key: spread_state(parameter, value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(spread_state(parameter, value) for value in state)
    if not isinstance(state, Tensor) or is_sharded(state) or state.ndim != parameter.ndim or state.ndim == 0:
        return state
    if state.shape == parameter.shape:
        return sharded_like(parameter, state)
    from torch.distributed.tensor import DTensor, Replicate

    sharded: Any = parameter
    mesh = sharded.device_mesh
    return DTensor.from_local(state.to(parameter.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
