"""How long does a plan take, and how much memory? Each in a process of its own, its imports told apart.

    python benchmarks/planner/speed.py            five processes of each; writes results/
    python benchmarks/planner/speed.py --quick    one of each; writes nothing

A Llama of 70 billion parameters (80 blocks, sequence 4,096, recomputed) with QLoRA and with AdamW, a small BERT, and the same BERT in a
window of many micro-batches. Nothing is downloaded: the models are of their configs, on the meta device. Seconds are of the wall and
of the processor: on a machine that does something else besides, the latter tell more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import write_result  # noqa: E402

REPEATS = 5
SEVENTY: Mapping[str, Any] = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
}
SMALL: Mapping[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 8000,
}
GOALS = {"70B, QLoRA": 10.0, "70B, AdamW": 10.0, "small": 4.0, "small, 16 micro-batches": 4.0}
"""Seconds of a plan, its imports included."""

MEMORY_GOAL = 2**30


def plan(what: str) -> dict[str, Any]:
    """One plan, in this process."""
    marks = [("begun", time.perf_counter(), time.process_time())]

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter(), time.process_time()))

    import copy

    import torch
    import transformers

    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan
    from snugfit.planner.device import Machine
    from snugfit.planner.dryrun import Subject
    from snugfit.planner.hardware import uncalibrated
    from snugfit.planner.predict import Planner
    from snugfit.techniques import find

    large = what.startswith("70B")
    kind = transformers.LlamaForCausalLM if large else transformers.BertForSequenceClassification
    mark("imports")
    config = transformers.LlamaConfig(**SEVENTY) if large else transformers.BertConfig(**SMALL)
    with torch.device("meta"):
        model = kind(config)
    mark("model")
    length = 4096 if large else 64
    ids = torch.zeros(1 if large else 16, length, dtype=torch.long)
    labels = ids if large else ids[:, 0]
    window = Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    names = {
        "70B, QLoRA": ("adamw", "nf4", "lora", "bf16", "recompute"),
        "70B, AdamW": ("adamw", "recompute"),
    }
    techniques = tuple(find(name).example() for name in names.get(what, ("adamw",)))
    asked = Plan(micro_batch=1 if "micro-batches" in what else None)
    job = Job(global_batch=window.rows, windows=100, epochs=None)
    loss = "causal_lm" if large else "cross_entropy"
    subject = Subject(
        lambda: copy.deepcopy(model), window, job, 1000, techniques, loss, loaded_so=what == "70B, QLoRA"
    )
    cpu = uncalibrated("cpu")
    found = Planner(subject, Machine(cpu, cpu)).predict(asked, techniques)
    mark("prediction")
    parts = {
        name: {"seconds": now - then, "processor_seconds": used - before}
        for (_, then, before), (name, now, used) in itertools.pairwise(marks)
    }
    return {
        "what": what,
        "parts": parts,
        "seconds": sum(part["seconds"] for part in parts.values()),
        "processor_seconds": sum(part["processor_seconds"] for part in parts.values()),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_bytes": found.peak_bytes,
    }


def in_process(what: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "speed.py"), "--plan", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    parts = ", ".join(
        f"{name} {part['seconds']:.1f} s ({part['processor_seconds']:.1f})"
        for name, part in found["parts"].items()
    )
    print(
        f"{what:25} {found['seconds']:5.1f} s, of the processor {found['processor_seconds']:5.1f}: {parts}; resident "
        f"{found['resident_bytes'] / 2**20:,.0f} MiB; says {found['peak_bytes'] / 2**30:,.2f} GiB",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one process of each; writes nothing")
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plan:
        print(json.dumps(plan(asked.plan)))
        return
    runs = [in_process(what) for _ in range(1 if asked.quick else REPEATS) for what in GOALS]
    told = []
    for what, goal in GOALS.items():
        own = [run for run in runs if run["what"] == what]
        seconds = [run["seconds"] for run in own]
        told.append(
            {
                "what": what,
                "seconds": statistics.median(seconds),
                "lowest": min(seconds),
                "highest": max(seconds),
                "goal": goal,
                "resident_bytes": max(run["resident_bytes"] for run in own),
                "resident_goal": MEMORY_GOAL,
            }
        )
    print(json.dumps(told, indent=1))
    if not asked.quick:
        write_result(HERE, {"summary": told, "runs": runs}, "speed")


if __name__ == "__main__":
    main()
