"""Counting what one of several ranks allocates and sends, real or fake."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from snugfit.planner.trace.fake_ranks import DataParallelTwin, shards_followed
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.system.processes import leave_as_rank
from snugfit.techniques.learning.adamw import AdamW
from tests.unit.strategies.ranks import group

INPUTS, WIDTH, CLASSES, ROWS = 16, 64, 4, 8

Make = Callable[[DeviceMesh], Strategy]

WAYS: Mapping[str, tuple[Make, Make]] = {  # of real ranks, and of fake ones
    "zero_3": 2 * (FullyShard,),
    "zero_3_reduce_once": 2 * (lambda mesh: FullyShard(mesh, reduce_each=False),),
    "zero_2": 2 * (lambda mesh: FullyShard(mesh, reshard_after_forward=False),),
    "ddp": (lambda mesh: DataParallel(at_once_bytes=0), lambda mesh: DataParallelTwin(at_once_bytes=0)),
    "ddp_at_once": (lambda mesh: DataParallel(), lambda mesh: DataParallelTwin()),
    "ddp_view": (
        lambda mesh: DataParallel(bucket_view=True),
        lambda mesh: DataParallelTwin(bucket_view=True),
    ),
}


class Rank(AllocatedBytes):
    """Counts local tensors, also those that are resized; `sent` has the bytes of each collective by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace == "c10d":
            _let_go()
            tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
            self.sent[func._schema.name] += max(tensor.nbytes for tensor in tensors)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def resized(self, storage: torch.UntypedStorage) -> None:
        if id(storage) in self._known:
            self._count(storage)


@contextmanager
def counting() -> Iterator[Rank]:
    with Rank() as rank, shards_followed(rank.resized):
        yield rank


def blocks() -> nn.Sequential:
    """Layers that 2, 8 and 64 ranks share evenly, so that nothing is padded."""
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    return nn.Sequential(nn.Linear(INPUTS, WIDTH), inner, nn.Linear(WIDTH, 64))


def updates(
    strategy: Strategy, micro_batch: int | None, model: nn.Module | None = None, times: int = 3
) -> list[list[int]]:
    """What is there after and at most in each of some updates, first of all after the step was made."""
    inputs, labels = torch.randn(ROWS, INPUTS), torch.zeros(ROWS, dtype=torch.long)
    with counting() as rank:
        step = Step(model or blocks(), AdamW(learning_rate=1e-3), micro_batch=micro_batch, strategy=strategy)
        _let_go(together=True)
        found = [[rank.now, rank.peak]]
        for _ in range(times):
            rank.history.clear()
            step((inputs, labels))
            _let_go(together=True)
            found.append([rank.now, rank.peak])
    return found


def _let_go(together: bool = False) -> None:
    """Waits until the other thread of this rank, or of each where they wait together, has let go of what it sent."""
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        if together:
            torch.distributed.barrier()
        time.sleep(0.05 if together else 0.003)


def sent(strategy: Strategy, micro_batch: int | None) -> Counter[str]:
    """The bytes of each collective in the second update, and those of the scalars that are added up."""
    inputs, labels = torch.randn(ROWS, INPUTS), torch.zeros(ROWS, dtype=torch.long)
    with counting() as rank:
        step = Step(blocks(), AdamW(learning_rate=1e-3), micro_batch=micro_batch, strategy=strategy)
        step((inputs, labels))
        rank.sent.clear()
        step((inputs, labels))
    return rank.sent


def real_ranks(folder: Path) -> dict[str, list[list[int]]]:
    """`updates` of each way to share among two processes, in micro-batches."""
    torch.multiprocessing.spawn(_real, (folder,), nprocs=2)
    return json.loads((folder / "bytes.json").read_text())


def _real(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    with group(folder, rank, 2):
        mesh = init_device_mesh("cpu", (2,))
        updates(FullyShard(mesh), None)  # what is made once for a process and kept, such as the 1 that scales
        found = {name: updates(real(mesh), ROWS // 2, times=8) for name, (real, _) in WAYS.items()}
    if rank == 0:
        (folder / "bytes.json").write_text(json.dumps(found))
    leave_as_rank(0)


def bytes_of(parameters: Sequence[Tensor] | Iterator[Tensor]) -> int:
    return sum(parameter.nbytes for parameter in parameters)
