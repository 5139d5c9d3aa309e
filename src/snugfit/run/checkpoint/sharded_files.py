"""Tensors that are spread over ranks, in the files of a checkpoint: each rank writes its parts, and reads those that it needs.

By torch.distributed.checkpoint, in safetensors: whatever ranks have written them, other ranks or one process can read them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from snugfit.kit.serialize import FOLDER as FOLDER
from snugfit.kit.serialize import StoredTensor
from snugfit.kit.sharded_tensors import is_sharded


def write(
    folder: Path, tensors: Mapping[str, Tensor], rank: int, group: dist.ProcessGroup | None = None
) -> list[Path]:
    """Write this rank's parts; all ranks call it. Returns the files of this rank.

    Args:
        group: what they exchange in; None for that of the training.
    Raises:
        OSError: one of the ranks could not write.
    """
    from torch.distributed.checkpoint import CheckpointException, HuggingFaceStorageWriter, save

    try:
        save(
            dict(tensors),
            storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
            process_group=group,
        )
    except CheckpointException as error:
        failures = "; ".join(f"rank {rank}: {reason[0]}" for rank, reason in error.failures.items())
        raise OSError(failures) from error
    return sorted(folder.glob(f"shard-{rank + 1:05d}-*"))


def loaded(state: Any, own: Any) -> Any:
    """Return a state that was read, with its tensors in place of what stands for them.

    They are this rank's parts where they are parts in the state of its own beside it, and whole elsewhere.
    """
    wanted: dict[Path, dict[str, Tensor]] = {}
    for stored, own_value in _stored_tensors(state, own):
        made = (
            torch.empty_like(own_value, dtype=stored.dtype)
            if is_sharded(own_value) and tuple(own_value.shape) == stored.shape
            else torch.empty(stored.shape, dtype=stored.dtype)
        )
        wanted.setdefault(stored.folder, {})[stored.name] = made
    if not wanted:
        return state
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    with warnings.catch_warnings():  # that one process reads: each rank does so by itself
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        for folder, tensors in wanted.items():
            load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    return _replaced(state, wanted)


def _stored_tensors(state: Any, own: Any) -> Iterator[tuple[StoredTensor, Any]]:
    if isinstance(state, StoredTensor):
        yield state, own
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from _stored_tensors(value, own.get(key) if isinstance(own, dict) else None)
    elif isinstance(state, (list, tuple)):
        same = isinstance(own, (list, tuple)) and len(own) == len(state)
        for place, value in enumerate(state):
            yield from _stored_tensors(value, own[place] if same else None)


def _replaced(state: Any, tensors: Mapping[Path, Mapping[str, Tensor]]) -> Any:
    if isinstance(state, StoredTensor):
        return tensors[state.folder][state.name]
    if isinstance(state, dict):
        return {key: _replaced(value, tensors) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_replaced(value, tensors) for value in state)
    return state
