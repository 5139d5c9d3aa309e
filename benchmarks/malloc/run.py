"""What does it save, and cost, to have glibc give large blocks back? A small Llama trained on a CPU, with and without.

    python benchmarks/malloc/run.py              writes results/DATE.json and README.md

Each run is a process of its own: the model from its config, AdamW, updates of one micro-batch on random tokens of lengths that
vary as text does. The settings take turns. The peak is the most that was resident; the baseline what was before the model; the
allocator's peak is the profiler's, of the same updates in one more process. Time is the median over all updates but the first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from common import paired_ratio, write_result  # noqa: E402

LENGTHS = (96, 32, 64, 80, 48, 72)
THRESHOLDS = {"as it is": 0, "from 128 KiB": 128 << 10, "from 4 MiB": 4 << 20}
ROWS = 16
UPDATES = 6


def train(threshold: int, profiled: bool) -> dict[str, Any]:
    """Return one run, in this process; a threshold of 0 leaves malloc as it is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from snugfit.system.malloc import tune_malloc
    from snugfit.system.memory import memory_bytes

    if threshold and not tune_malloc(threshold):
        raise SystemExit("malloc is set up by the environment already, or is not glibc's: nothing to compare")
    baseline = memory_bytes(torch.device("cpu"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    seconds: list[float] = []

    def run() -> None:
        model = LlamaForCausalLM(config).train()
        optimizer = torch.optim.AdamW(model.parameters())
        for number in range(UPDATES):
            length = LENGTHS[number % len(LENGTHS)]
            tokens = torch.randint(0, config.vocab_size, (ROWS, length))
            began = time.perf_counter()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)

    figures: dict[str, Any] = {"baseline_bytes": baseline}
    if profiled:
        figures["allocated_peak_bytes"] = _allocated_peak(run)
    else:
        run()
        figures["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        figures["seconds"] = seconds
    return figures


def _allocated_peak(run: Any) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    changes = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def apart(*flags: str) -> dict[str, Any]:
    """Return one run, in a process of its own that nobody has set up malloc for."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, __file__, "--one", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(repeats: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in THRESHOLDS}
    for repeat in range(repeats):
        for kind in list(THRESHOLDS)[:: 1 if repeat % 2 == 0 else -1]:
            runs[kind].append(apart("--threshold", str(THRESHOLDS[kind])))
    allocated = apart("--profiled")["allocated_peak_bytes"]
    times = {kind: [statistics.median(run["seconds"][1:]) for run in those] for kind, those in runs.items()}
    rows = []
    for kind, those in runs.items():
        peak = statistics.median(run["peak_bytes"] for run in those)
        grown = statistics.median(run["peak_bytes"] - run["baseline_bytes"] for run in those)
        ratio = paired_ratio(times[kind], times["as it is"])
        rows.append(
            {"blocks given back": kind, "peak_bytes": peak, "grown_bytes": grown, "time_ratio": ratio}
        )
    return {"allocated_peak_bytes": allocated, "rows": rows, "runs": runs}


def table(result: dict[str, Any], name: str) -> str:
    lines = [
        "# Giving memory back on a CPU, measured",
        "",
        "| blocks given back | peak of the process | resident above the start | beyond the allocator's peak | time an update |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        ratio = row["time_ratio"]
        cells = [
            row["blocks given back"],
            f"{row['peak_bytes'] / 1e6:,.0f} MB",
            f"{row['grown_bytes'] / 1e6:,.0f} MB",
            f"{(row['grown_bytes'] - result['allocated_peak_bytes']) / 1e6:+,.0f} MB",
            f"{ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = result["machine"]
    lines += [
        "",
        "Medians over processes that took turns; of the times, the median ratio to glibc as it is, with its 95% interval. The",
        f"allocator's peak is {result['allocated_peak_bytes'] / 1e6:,.0f} MB. Made by `run.py` from [{name}](results/{name}) of "
        f"{result['date']}: {about['cores']} cores,",
        f"{result['threads']} threads, torch {about['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--one", action="store_true", help="one run in this process, told as JSON")
    parser.add_argument("--threshold", type=int, default=0, help="of that run, in bytes")
    parser.add_argument("--profiled", action="store_true")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(train(asked.threshold, asked.profiled)))
        return
    result = {"threads": os.environ.get("OMP_NUM_THREADS", "all"), **measure(asked.repeats)}
    path = write_result(HERE, result)
    (HERE / "README.md").write_text(table(json.loads(path.read_text()), path.name))


if __name__ == "__main__":
    main()
