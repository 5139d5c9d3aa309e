"""The cost that Snugfit's step adds to torch's own loop on two processes, under DDP and under FSDP2.

    python benchmarks/ranks/run.py [--updates 30] [--turns 11]

Two gloo ranks on one machine train a small Llama (12 M parameters, fp32) on windows of 8 rows in micro-batches of 2, on each rank: a
loop as torch's documentation writes it (`no_sync` before DDP's last micro-batch; FSDP2 adds up with every one; the loss divided by the
labels of the window on all ranks, clipping, AdamW), and `sf.Step` with the same. Both take turns in the same processes; the ratio is
that of the medians of a turn's time, its interval from the turns' own ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
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
from common import write_result  # noqa: E402
from torch import Tensor, nn  # noqa: E402

RANKS, ROWS, MICRO, TOKENS, VOCABULARY = 2, 8, 2, 64, 2048
RATE, NORM = 1e-4, 1.0
Update = Callable[[], Any]


def model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def window(rank: int) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(rank)
    ids = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=source)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def theirs(way: str, batch: dict[str, Tensor]) -> Update:
    """Torch's own loop."""
    made = model()
    if way == "ddp":
        wrapped: nn.Module = nn.parallel.DistributedDataParallel(made)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in made.model.layers:
            fully_shard(layer)
        wrapped = fully_shard(made)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=RATE, fused=way == "ddp")
    parts = [
        {name: value[start : start + MICRO] for name, value in batch.items()}
        for start in range(0, ROWS, MICRO)
    ]

    def update() -> None:
        count = torch.tensor(float((batch["labels"][:, 1:] != -100).sum()))
        dist.all_reduce(count)
        optimizer.zero_grad(set_to_none=True)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            # FSDP2 adds up with each micro-batch, as ours does: gradients are never whole
            with wrapped.no_sync() if way == "ddp" and not last else torch.enable_grad():
                logits = wrapped(input_ids=part["input_ids"], attention_mask=part["attention_mask"]).logits
                loss = nn.functional.cross_entropy(
                    logits[:, :-1].flatten(0, 1), part["labels"][:, 1:].flatten(), reduction="sum"
                )
                # both divide by the number of ranks
                (loss * RANKS / count).backward()
        torch.nn.utils.clip_grad_norm_(wrapped.parameters(), NORM)
        optimizer.step()

    return update


def ours(way: str, batch: dict[str, Tensor]) -> Update:
    import snugfit as sf
    from snugfit.strategies.registry import STRATEGIES, mesh_of

    step = sf.Step(
        model(),
        sf.AdamW(learning_rate=RATE),
        "causal_lm",
        [sf.ClipNorm(NORM)],
        micro_batch=MICRO,
        strategy=STRATEGIES[way](mesh_of("cpu", (RANKS,))),
    )
    return lambda: step(batch)


def timed(update: Update, count: int) -> float:
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        update()
    dist.barrier()
    return (time.perf_counter() - began) / count


def measure(rank: int, meeting: str, updates: int, turns: int) -> None:
    from snugfit.system.processes import leave_as_rank

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    rows = []
    for way in ("ddp", "fsdp"):
        batch = window(rank)
        loops = {"torch": theirs(way, batch), "snugfit": ours(way, batch)}
        for update in loops.values():
            timed(update, 2)
        seconds_of: dict[str, list[float]] = {name: [] for name in loops}
        for turn in range(turns):
            for name in sorted(loops, reverse=bool(turn % 2)):
                seconds_of[name].append(timed(loops[name], updates))
        ratios = sorted(
            one / other for one, other in zip(seconds_of["snugfit"], seconds_of["torch"], strict=True)
        )
        medians = {name: statistics.median(times) for name, times in seconds_of.items()}
        rows.append(
            {
                "way": way,
                "seconds": medians,
                "ratio": medians["snugfit"] / medians["torch"],
                "ratios": ratios,
            }
        )
    if rank == 0:
        Path(meeting + ".json").write_text(json.dumps(rows))
    dist.destroy_process_group()
    leave_as_rank(0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=5, help="of a turn")
    parser.add_argument("--turns", type=int, default=11)
    asked = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder, "meeting"))
        torch.multiprocessing.spawn(measure, (meeting, asked.updates, asked.turns), nprocs=RANKS)
        rows = json.loads(Path(meeting + ".json").read_text())
    for row in rows:
        quarter = len(row["ratios"]) // 4
        between = f"{row['ratios'][quarter]:.3f} to {row['ratios'][-1 - quarter]:.3f}"
        print(
            f"{row['way']}: torch {row['seconds']['torch'] * 1e3:.0f} ms, snugfit {row['seconds']['snugfit'] * 1e3:.0f} ms, "
            f"ratio {row['ratio']:.3f} (half of the turns: {between})"
        )
    print(write_result(HERE, {"rows": rows, "updates": asked.updates}))


if __name__ == "__main__":
    main()
