"""What does it save, and cost, to have glibc give large blocks back? A small Llama trained on a CPU, with and without.

    python benchmarks/malloc/run.py              writes results/DATE.json and README.md

Each run is a process of its own: the model from its config, AdamW, updates of one micro-batch on random tokens of lengths that
vary as text does. The two take turns. The peak is the most that was resident; the baseline what was before the model; the
allocator's peak is the profiler's, of the same updates in one more process. Time is the median over all updates but the first two.
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
from common import paired_ratio, write_result

CASES = {"one length": (96,), "lengths that vary": (96, 32, 64, 80, 48, 72)}
ROWS = 16
UPDATES = 6


def train(case: str, tuned: bool, profiled: bool) -> dict[str, Any]:
    """One run, in this process."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from snugfit.core.malloc import tune_malloc
    from snugfit.core.memory import memory_bytes

    if tuned and not tune_malloc():
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
            length = CASES[case][number % len(CASES[case])]
            tokens = torch.randint(0, config.vocab_size, (ROWS, length))
            began = time.perf_counter()
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)

    found: dict[str, Any] = {"baseline_bytes": baseline}
    if profiled:
        found["allocated_peak_bytes"] = _allocated_peak(run)
    else:
        run()
        found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found["seconds"] = seconds
    return found


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


def apart(case: str, *flags: str) -> dict[str, Any]:
    """One run, in a process of its own that nobody has set up malloc for."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))
    }
    command = [sys.executable, __file__, "--case", case, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(case: str, repeats: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {"default": [], "tuned": []}
    for repeat in range(repeats):
        for kind in ("default", "tuned") if repeat % 2 == 0 else ("tuned", "default"):
            runs[kind].append(apart(case, *(["--tuned"] if kind == "tuned" else [])))
    allocated = apart(case, "--profiled")["allocated_peak_bytes"]
    times = {kind: [statistics.median(run["seconds"][2:]) for run in those] for kind, those in runs.items()}
    grown = {
        kind: statistics.median(run["peak_bytes"] - run["baseline_bytes"] for run in those)
        for kind, those in runs.items()
    }
    peaks = {kind: statistics.median(run["peak_bytes"] for run in those) for kind, those in runs.items()}
    return {
        "case": case,
        "allocated_peak_bytes": allocated,
        "peak_bytes": peaks,
        "grown_bytes": grown,
        "saved_share": 1 - peaks["tuned"] / peaks["default"],
        "time_ratio": paired_ratio(times["tuned"], times["default"]),
        "runs": runs,
    }


def table(result: dict[str, Any], name: str) -> str:
    lines = [
        "# Giving memory back on a CPU, measured",
        "",
        "| tokens of a row | allocated | resident above the start: as it is | tuned | peak of the process | time an update |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["cases"]:
        grown, allocated, ratio = row["grown_bytes"], row["allocated_peak_bytes"], row["time_ratio"]
        cells = [
            row["case"],
            f"{allocated / 1e6:,.0f} MB",
            *(
                f"{grown[kind] / 1e6:,.0f} MB ({(grown[kind] - allocated) / 1e6:+,.0f})"
                for kind in ("default", "tuned")
            ),
            f"{-row['saved_share']:+.1%}",
            f"{ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = result["machine"]
    lines += [
        "",
        "Medians over processes that took turns; in brackets what is resident beyond the allocator's peak, and the 95% interval of",
        f"the median ratio of times. Made by `run.py` from [{name}](results/{name}) of {result['date']}: {about['cores']} cores,",
        f"{result['threads']} threads, torch {about['torch']}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--case", choices=CASES, help="one run in this process, told as JSON")
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--profiled", action="store_true")
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(train(asked.case, asked.tuned, asked.profiled)))
        return
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    result = {"threads": threads, "cases": [measure(case, asked.repeats) for case in CASES]}
    path = write_result(HERE, result)
    (HERE / "README.md").write_text(table(json.loads(path.read_text()), path.name))


if __name__ == "__main__":
    main()
