"""One window trained on by one or several processes, and what comes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.system.processes import leave_as_rank
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.sgd import SGD

ROWS, INPUTS, CLASSES, UPDATES = 8, 6, 3, 3

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "ddp": DataParallel,
    "ddp_bucket_view": lambda: DataParallel(bucket_view=True),
    "zero_3": FullyShard,
    "zero_3_reduce_once": lambda: FullyShard(reduce_each=False),
    "zero_3_cpu_offload": lambda: FullyShard(cpu_offload=True),
    "zero_2": lambda: FullyShard(reshard_after_forward=False),
}


@contextmanager
def group(folder: Path, rank: int = 0, world_size: int = 1) -> Iterator[None]:
    """Within, this process is one of a gloo group that meets in a file."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=world_size
    )
    try:
        yield
        if world_size > 1:
            dist.barrier()  # one that leaves while another still receives takes it down
    finally:
        dist.destroy_process_group()


def trained(strategy: Callable[[], Strategy], rows: slice) -> list[float]:
    """The weights after some updates on these rows of the window, of which the last ones have no label: plain, and clipped."""
    return _trained(strategy(), rows, ()) + _trained(strategy(), rows, (ClipNorm(0.05),))


def _trained(strategy: Strategy, rows: slice, techniques: tuple[ClipNorm, ...]) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, INPUTS), nn.Tanh(), nn.Linear(INPUTS, CLASSES)).double()
    inputs = torch.randn(ROWS, INPUTS, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (ROWS,))
    labels[5:] = -100
    step = Step(
        model,
        SGD(learning_rate=0.5, momentum=0.9),
        techniques=techniques,
        micro_batch=3,
        strategy=strategy,
    )
    for _ in range(UPDATES):
        step((inputs[rows], labels[rows]))
    return torch.cat([whole(parameter).flatten() for parameter in step.model.parameters()]).tolist()


def two_ranks(folder: Path) -> dict[str, list[float]]:
    """What each strategy ends with where two processes take one half of the window each."""
    torch.multiprocessing.spawn(_rank, (folder,), nprocs=2)
    return json.loads((folder / "weights.json").read_text())


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    half = slice(0, ROWS // 2) if rank == 0 else slice(ROWS // 2, ROWS)
    with group(folder, rank, 2):
        weights = {name: trained(strategy, half) for name, strategy in STRATEGIES.items()}
    if rank == 0:
        (folder / "weights.json").write_text(json.dumps(weights))
    leave_as_rank(0)
