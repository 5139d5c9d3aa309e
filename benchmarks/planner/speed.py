"""How long does a plan take, and how much memory? Each from the start of a process to its end, its imports told apart.

    python benchmarks/planner/speed.py            five of each; writes results/
    python benchmarks/planner/speed.py --quick    one of each; writes nothing
    python benchmarks/planner/speed.py --only "70B, AdamW"

A Llama of 70 billion parameters (80 blocks, sequence 4,096, recomputed) with QLoRA and with AdamW, a small BERT, and the same BERT in a
window of many micro-batches, each in the planner's own process as `snugfit plan` starts it; that command for the small BERT; and a
whole search for a Llama of 8 billion parameters on a card of 24 GB, LoRA allowed down to 4 bits. Nothing is downloaded: the models are of their configs, on the
meta device. Seconds are of the wall and of the processors: on a machine that does something else besides, the latter tell more.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
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
EIGHT: Mapping[str, Any] = {
    **SEVENTY,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 14336,
}
SMALL: Mapping[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "vocab_size": 8000,
}
COMMAND, SEARCH = "small, the command", "8B, search on 24 GB"
GOALS = {
    "70B, QLoRA": 10.0,
    "70B, AdamW": 10.0,
    "small": 4.0,
    "small, 16 micro-batches": 4.0,
    COMMAND: 4.0,
    SEARCH: 60.0,
}
"""Seconds of a plan, its imports included."""

MEMORY_GOAL = 2**30

RECIPE = """task: text-classification
model: .
data: {train: rows.csv, max_length: 64}
train: {epochs: null, updates: 100, global_batch: 16}
"""


def plan(what: str, started: float) -> dict[str, Any]:
    """Return one plan, in the planner's process.

    Args:
        started: when that was, by `time.time`.
    """
    imports = {"seconds": time.time() - started, "processor_seconds": time.process_time()}
    import copy

    import torch
    import transformers

    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan
    from snugfit.core.technique import Fidelity
    from snugfit.planner.choice.candidate import Budget
    from snugfit.planner.devices.device import Machine
    from snugfit.planner.devices.hardware import uncalibrated
    from snugfit.planner.plan import Request, make_plan
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.target import Target, machine_of
    from snugfit.planner.trace.dry_run import Subject
    from snugfit.techniques import find

    begun, used = time.perf_counter(), time.process_time()
    searched = what == SEARCH
    large = searched or what.startswith("70B")
    kind = transformers.LlamaForCausalLM if large else transformers.BertForSequenceClassification
    shape = EIGHT if searched else SEVENTY
    config = transformers.LlamaConfig(**shape) if large else transformers.BertConfig(**SMALL)
    with torch.device("meta"):
        model = kind(config)
    length = 2048 if searched else 4096 if large else 64
    ids = torch.zeros(1 if large and not searched else 16, length, dtype=torch.long)
    labels = ids if large else ids[:, 0]
    window = Batch.of({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    names = {
        "70B, QLoRA": ("adamw", "nf4", "lora", "bf16", "recompute"),
        "70B, AdamW": ("adamw", "recompute"),
    }
    techniques = tuple(find(name).example() for name in names.get(what, ("adamw",)))
    job = Job.of(global_batch=window.rows, updates=100)
    loss = "causal_lm" if large else "cross_entropy"
    subject = Subject(lambda: copy.deepcopy(model), window, job, 1000, techniques, loss, from_files=large)
    if searched:
        with machine_of(Target(device="rtx4090")) as machine:
            budget = Budget(machine.device.memory_bytes, fidelity=Fidelity.QUANTIZED)
            peak = make_plan(
                subject, machine, Request(Plan(device=machine.type), budget)
            ).prediction.peak_bytes
    else:
        cpu = uncalibrated("cpu")
        asked = Plan(micro_batch=1 if "micro-batches" in what else None)
        peak = Planner(subject, Machine(cpu, cpu)).predict(asked, techniques).peak_bytes
    planning = {
        "seconds": time.perf_counter() - begun,
        "processor_seconds": time.process_time() - used,
    }
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "parts": {"imports": imports, "planning": planning},
        "resident_bytes": resident,
        "peak_bytes": peak,
    }


def asked_of_worker(what: str) -> dict[str, Any]:
    """Return a plan of the planner's process, which loads what it needs as for `snugfit plan`."""
    from snugfit.planner.worker import Worker

    started = time.time()
    worker = Worker()
    worker.load("transformers.modeling_utils")
    answer: dict[str, Any] = worker.run(plan, what, started, timeout=600)
    return answer


def asked_by_command() -> dict[str, Any]:
    """`snugfit plan` of the small model; what it takes in memory and time is told by whoever started this process."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "recipe.yaml").write_text(RECIPE)
        Path(folder, "config.json").write_text(json.dumps({"model_type": "bert", **SMALL}))
        command = [sys.executable, "-m", "snugfit", "plan", "recipe.yaml", "--no-search", "--json"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {"parts": {}, "resident_bytes": resident, "peak_bytes": answer["peak_bytes"]}


def in_process(what: str) -> dict[str, Any]:
    """Return a plan in processes of their own, from their start to their end."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, str(HERE / "speed.py"), "--plan", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    answer |= {"what": what, "seconds": seconds, "processor_seconds": used}
    parts = ", ".join(
        f"{name} {part['seconds']:.1f} s ({part['processor_seconds']:.1f})"
        for name, part in answer["parts"].items()
    )
    print(
        f"{what:25} {seconds:5.1f} s, of the processors {used:5.1f}: {parts or 'as a whole'}; resident "
        f"{answer['resident_bytes'] / 2**20:,.0f} MiB; says {answer['peak_bytes'] / 2**30:,.2f} GiB",
        flush=True,
    )
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one process of each; writes nothing")
    parser.add_argument("--only", choices=GOALS, help="one of each of these; writes nothing")
    parser.add_argument("--plan", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.plan:
        print(json.dumps(asked_by_command() if asked.plan == COMMAND else asked_of_worker(asked.plan)))
        return
    goals = {asked.only: GOALS[asked.only]} if asked.only else GOALS
    few = asked.quick or asked.only is not None
    runs = [in_process(what) for _ in range(1 if few else REPEATS) for what in goals]
    summary = []
    for what, goal in goals.items():
        own = [run for run in runs if run["what"] == what]
        seconds = [run["seconds"] for run in own]
        summary.append(
            {
                "what": what,
                "seconds": statistics.median(seconds),
                "processor_seconds": statistics.median(run["processor_seconds"] for run in own),
                "lowest": min(seconds),
                "highest": max(seconds),
                "goal": goal,
                "resident_bytes": max(run["resident_bytes"] for run in own),
                "resident_goal": MEMORY_GOAL,
            }
        )
    print(json.dumps(summary, indent=1))
    if not few:
        write_result(HERE, {"summary": summary, "runs": runs}, "speed")


if __name__ == "__main__":
    main()
