"""The cost of an update of microseconds on two ranks beside torch's own loop: its exchanges, and CPU time.

    python benchmarks/ranks/small.py [--updates 100] [--turns 15] [--clip]

Two gloo ranks on one machine train a network of 1,122 weights on windows of 8 rows each, with AdamW, and with `--clip` under a bound of the
gradient's norm: a loop as torch's documentation writes it (DDP, or FSDP2 around each layer and the rest), and `sf.Step` with the same. Both
take turns in the same processes. The ratio is that of the least CPU time of a turn, so that what else runs counts for less. Exchanges are
counted by torch's profiler in updates after the first ones.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from common import write_result  # noqa: E402
from torch import Tensor, nn  # noqa: E402

RANKS, ROWS, WIDTH, CLASSES = 2, 8, 32, 2
RATE, NORM = 1e-3, 1.0
WARM, COUNTED = 20, 10
Update = Callable[[], Any]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def theirs(way: str, window: tuple[Tensor, Tensor], clips: bool) -> Update:
    """Torch's own loop."""
    wrapped: nn.Module = model()
    if way == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(wrapped)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in wrapped.children():
            fully_shard(layer)
        wrapped = fully_shard(wrapped)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=RATE, fused=True)

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(wrapped(window[0]), window[1])
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(wrapped.parameters(), NORM)
        optimizer.step()
        return loss.item()

    return update


def ours(way: str, window: tuple[Tensor, Tensor], clips: bool) -> Update:
    import snugfit as sf
    from snugfit.strategies.registry import STRATEGIES, mesh_of

    step = sf.Step(
        model(),
        sf.AdamW(learning_rate=RATE),
        "cross_entropy",
        [sf.ClipNorm(NORM)] if clips else [],
        strategy=STRATEGIES[way](mesh_of("cpu", (RANKS,))),
    )
    return lambda: step(window)


def exchanges(update: Update) -> dict[str, float]:
    """Return how often an update asks for each of torch's collectives."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(COUNTED):
            update()
    counts = {event.key: event.count / COUNTED for event in profiler.key_averages()}
    return {
        name.removeprefix("c10d::").strip("_"): count
        for name, count in counts.items()
        if name.startswith("c10d::")
    }


def seconds(update: Update, count: int) -> float:
    """Return the CPU time of an update, with that of the threads that exchange for it."""
    dist.barrier()
    began = time.process_time()
    for _ in range(count):
        update()
    return (time.process_time() - began) / count


def measure(rank: int, meeting: str, updates: int, turns: int, clips: bool) -> None:
    from snugfit.system.processes import leave_as_rank

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    source = torch.Generator().manual_seed(rank)
    window = (
        torch.randn(ROWS, WIDTH, generator=source),
        torch.randint(0, CLASSES, (ROWS,), generator=source),
    )
    rows = []
    for way in ("ddp", "fsdp"):
        loops = {"torch": theirs(way, window, clips), "snugfit": ours(way, window, clips)}
        for update in loops.values():
            seconds(update, WARM)
        counts = {name: exchanges(update) for name, update in loops.items()}
        times: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(turns):
            for name in sorted(loops, reverse=bool(turn % 2)):
                times[name].append(seconds(loops[name], updates))
        least = {name: min(each) for name, each in times.items()}
        ratio = least["snugfit"] / least["torch"]
        rows.append(
            {"way": way, "exchanges": counts, "least_seconds": least, "ratio": ratio, "seconds": times}
        )
    if rank == 0:
        Path(meeting + ".json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()
    leave_as_rank(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=100, help="of a turn")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--clip", action="store_true")
    asked = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        settings = (meeting, asked.updates, asked.turns, asked.clip)
        torch.multiprocessing.spawn(measure, settings, nprocs=RANKS)
        rows = json.loads(Path(meeting + ".json").read_text())
    for row in rows:
        for name, counts in row["exchanges"].items():
            listed = ", ".join(f"{count:g} {kind}" for kind, count in sorted(counts.items()))
            print(f"{row['way']} {name}: {row['least_seconds'][name] * 1e6:.0f} us; {listed}")
        print(f"{row['way']}: ratio {row['ratio']:.2f}")
    result = {"rows": rows, "updates": asked.updates, "clip": asked.clip}
    print(write_result(HERE, result, name="small-clip" if asked.clip else "small"))


if __name__ == "__main__":
    main()
