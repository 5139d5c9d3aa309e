"""The time that training waits for a checkpoint that is written beside it, and for one that it waits for: one process, DDP and FSDP2.

    python benchmarks/ranks/save.py [--turns 7] [--updates 6]

A Llama of 43 million parameters in fp32 trains with AdamW, on one process and on two gloo ranks of one machine; a checkpoint has 513 MB.
Runs with `checkpoint.save: sync` and `async` take turns in the same processes. A turn is a save, the updates behind it, in which what is
written beside them comes to its end, and as many without a save. Blocked is what the `checkpoint` event says, on the first rank: for
async the copy, and what the next save or the end had to wait; the ratio is that of the medians. Beside it stands what the updates took
longer than without a save: both together are the price.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing  # noqa: E402
from common import paired_ratio, write_result  # noqa: E402
from torch import nn  # noqa: E402

from snugfit.core.job import Job, Plan  # noqa: E402
from snugfit.results.run_folder import RunFolder  # noqa: E402
from snugfit.run.training.assemble import assemble  # noqa: E402
from snugfit.run.training.loop import Training  # noqa: E402
from snugfit.step.build import Material  # noqa: E402
from snugfit.strategies.base import Strategy  # noqa: E402
from snugfit.strategies.registry import strategy_of  # noqa: E402
from snugfit.system.processes import World, leave_as_rank  # noqa: E402
from snugfit.techniques.learning.adamw import AdamW  # noqa: E402

ROWS, TOKENS, VOCABULARY = 2, 64, 4096
WAYS = {"single": 1, "ddp": 2, "fsdp": 2}
"""Each with its number of processes."""
SAVES = ("sync", "async")


def model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=12,
        num_attention_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


class Run:
    """A run, with its last `checkpoint` event."""

    def __init__(self, folder: Path, save: str, strategy: Strategy) -> None:
        ids = torch.randint(VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
        self.window = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        rows = [{name: value[row] for name, value in self.window.items()} for row in range(ROWS)]
        folder.mkdir(parents=True, exist_ok=True)
        self.saved: dict[str, Any] = {}
        self.training: Training = assemble(
            Job.of(global_batch=ROWS, updates=1_000_000, checkpoint_save=save),
            Plan(),
            Material(model(), rows, None, "causal_lm"),
            None,
            (AdamW(learning_rate=1e-4),),
            {},
            folder=RunFolder(folder),
            emit=self._emit,
            save_best=lambda *args, **settings: None,
            strategy=strategy,
        )

    def _emit(self, kind: str, /, **fields: Any) -> None:
        if kind == "checkpoint":
            self.saved = fields

    def updates(self, count: int) -> float:
        """Return seconds of so many updates; at each boundary the run looks at the save under way."""
        began = time.perf_counter()
        for _ in range(count):
            self.training.step(self.window)
            self.training.saving.poll()
        return time.perf_counter() - began

    def turn(self, updates: int) -> dict[str, float]:
        self.training.saving.save()
        during = self.updates(updates)
        self.training.saving.finish()
        quiet = self.updates(updates)
        return {
            "blocked": self.saved.get("blocked_seconds", 0.0),
            "whole": self.saved.get("seconds", 0.0),
            "slower": during - quiet,
        }


def measure(rank: int, meeting: str, folder: str, way: str, turns: int, updates: int) -> None:
    torch.set_num_threads(1)
    if WAYS[way] > 1:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WAYS[way])
    plan, world = Plan(strategy=way, devices=WAYS[way]), World(rank, WAYS[way], local_rank=rank)
    runs = {save: Run(Path(folder, save), save, strategy_of(plan, world)) for save in SAVES}
    for run in runs.values():
        run.updates(1)  # which makes the optimizer's state
    first = {save: run.turn(updates) for save, run in runs.items()}  # memory for the copy is asked for
    turns_of: dict[str, list[dict[str, float]]] = {save: [] for save in SAVES}
    for turn in range(turns):
        for save in sorted(SAVES, reverse=bool(turn % 2)):
            turns_of[save].append(runs[save].turn(updates))
    if rank == 0:
        Path(meeting + ".json").write_text(json.dumps({"first": first, "turns": turns_of}))
    if WAYS[way] > 1:
        dist.destroy_process_group()
    leave_as_rank(0)


def measured(way: str, turns: int, updates: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=HERE) as folder:  # on a disk
        meeting = str(Path(folder, "meeting"))
        torch.multiprocessing.spawn(measure, (meeting, folder, way, turns, updates), nprocs=WAYS[way])
        figures = json.loads(Path(meeting + ".json").read_text())
        (newest,) = list(Path(folder, "async", "checkpoints").glob("update-*"))[-1:]
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    columns = {
        save: {
            name: [turn[name] for turn in figures["turns"][save]] for name in ("blocked", "whole", "slower")
        }
        for save in SAVES
    }
    medians = {
        save: {name: statistics.median(each) for name, each in columns[save].items()} for save in SAVES
    }
    return {
        "way": way,
        "checkpoint_bytes": size,
        "medians": medians,
        "ratio": medians["async"]["blocked"] / medians["sync"]["blocked"],
        "paired": paired_ratio(columns["async"]["blocked"], columns["sync"]["blocked"]),
        **figures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="behind a save, and without one")
    parser.add_argument("--way", choices=WAYS, action="append", help="which alone")
    asked = parser.parse_args()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    rows = [measured(way, asked.turns, asked.updates) for way in asked.way or WAYS]
    for row in rows:
        sync, asynchronous = (row["medians"][save] for save in SAVES)
        print(
            f"{row['way']}: sync blocks {sync['blocked']:.2f} s; async {asynchronous['blocked'] * 1e3:.0f} ms "
            f"({row['ratio']:.1%}; turn by turn {row['paired']['median']:.1%}) of {asynchronous['whole']:.2f} s, updates meanwhile "
            f"{asynchronous['slower']:+.2f} s"
        )
    print(write_result(HERE, {"rows": rows, "updates": asked.updates}, name="save"))


if __name__ == "__main__":
    main()
