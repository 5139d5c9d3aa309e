"""How much memory does an update need, rung by rung, and how long does it take? Beside HF Trainer on the same model.

    python benchmarks/memory/run.py              about half an hour on two idle cores
    python benchmarks/memory/run.py --turns 0    memory alone, which no load moves; times stay those of the run before
    python benchmarks/memory/run.py --short      a tiny model, to see whether it runs; writes nothing

A Llama-shaped model of 134M parameters, vocabulary 32,000, sequence 512, batch 8, fp32, on a CPU. Each contender runs in a
process of its own. Its peak is that of torch's allocation events (the profiler's) over two updates, with all that has been
alive since before the model was made; what is alive there is told apart by asking whose it is. The times are of other processes without any
instrument, in turns; ratios are taken within a turn. The table in README.md is made from the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import paired_ratio, write_result  # noqa: E402

TURNS = 2
UPDATES = 2
BASELINES = ("hf", "hf_tuned")
TIMED = (*BASELINES, "plain", "recompute", "in_backward", "rows", "lora", "hf_lora")
"""An update takes most of a minute; the others are told by their memory alone."""
MIB = 2**20
MADE = "the model is made"


def measure_memory(name: str, size: str) -> dict[str, Any]:
    """Peak of the allocation events, and what is alive at the peak by kind."""
    import torch
    from contenders import CONTENDERS, SIZES
    from kinds import KindsAtPeak
    from torch.profiler import ProfilerActivity, profile

    given = SIZES[size]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, KindsAtPeak() as kinds:
        losses = _train(CONTENDERS[name].make, given, UPDATES, lambda: None, kinds.watch)
    now, peaks = 0, {"making": 0, "updates": 0}
    stage = "making"
    for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == MADE:
            stage = "updates"
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CPU:
            now += event.nbytes()
            peaks[stage] = max(peaks[stage], now)
    return {
        "peak_bytes": peaks["updates"],
        "making_peak_bytes": peaks["making"],
        "kinds": kinds.at_peak,
        "counted_peak_bytes": kinds.highest,
        "losses": losses,
    }


def measure_time(name: str, size: str) -> dict[str, Any]:
    """Return seconds of each update; the first makes the optimizer's states and is left out."""
    from contenders import CONTENDERS, SIZES

    marks = [0.0]
    losses = _train(CONTENDERS[name].make, SIZES[size], UPDATES, lambda: marks.append(time.perf_counter()))
    return {"seconds": marks[-1] - marks[-2], "losses": losses}


def _train(make: Any, size: Any, updates: int, mark: Any, watch: Any = None) -> list[float]:
    import torch

    model, optimizer, update = make(size)
    with torch.profiler.record_function(MADE):
        torch.empty(0)
    if watch is not None:
        watch(model, optimizer)
    if hasattr(update, "train"):
        return update.train(updates, mark)
    losses = []
    for number in range(updates):
        losses.append(update(number))
        mark()
    return losses


def in_process(what: str, name: str, size: str) -> dict[str, Any]:
    """Measure in a fresh process; what it printed last is the result."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, str(HERE / "run.py"), "--measure", what, name, size]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return {"error": (done.stderr.strip().splitlines() or ["killed"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(names: list[str], size: str, turns: int) -> dict[str, Any]:
    memory = {}
    for name in names:
        memory[name] = in_process("memory", name, size)
        print(name, json.dumps(memory[name]), flush=True)
    if turns == 0:
        return {"size": size, "memory": memory, **times_before()}
    seconds = run_times(names, size, turns)
    return {"size": size, "memory": memory, "seconds": seconds, "timed": time.strftime("%Y-%m-%d")}


def times_before() -> dict[str, Any]:
    """Return the times of the newest result, and when they were measured."""
    newest = json.loads(max((HERE / "results").glob("2*.json")).read_text())
    return {"seconds": newest["seconds"], "timed": newest.get("timed", newest["date"])}


def run_times(names: list[str], size: str, turns: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in names if name in TIMED}
    for turn in range(turns):
        order = list(times)[turn % len(times) :] + list(times)[: turn % len(times)]
        for name in order:
            figures = in_process("time", name, size)
            times[name].append(figures.get("seconds", float("nan")))
            print(name, figures, flush=True)
    return times


def table(result: Mapping[str, Any]) -> str:
    """Return the ladder in Markdown, from the JSON alone."""
    from contenders import CONTENDERS

    memory, times = result["memory"], result["seconds"]
    kinds = ("weights", "gradients", "optimizer", "rest")
    lines = [
        "| | peak, MiB | weights | gradients | optimizer | rest | of HF's default | of HF tuned | time of HF's default | time of HF tuned |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, figures in memory.items():
        if "error" in figures:
            lines.append(f"| {CONTENDERS[name].shown} | failed: {figures['error'][:80]} | | | | | | | | |")
            continue
        cells = [
            f"{figures['peak_bytes'] / MIB:,.0f}",
            *(f"{figures['kinds'][kind] / MIB:,.0f}" for kind in kinds),
        ]
        for baseline in BASELINES:
            known = memory.get(baseline, {}).get("peak_bytes")
            cells.append(f"{figures['peak_bytes'] / known:.2f}" if known else "")
        for baseline in BASELINES:
            same = baseline in times and name in times
            cells.append(f"{paired_ratio(times[name], times[baseline])['median']:.2f}" if same else "")
        lines.append(f"| {CONTENDERS[name].shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def readme(result: Mapping[str, Any]) -> str:
    seconds = {name: statistics.median(times) for name, times in result["seconds"].items() if times}
    return f"""# Memory of an update, rung by rung

A Llama-shaped model of 134M parameters (vocabulary 32,000, sequence 512, batch 8) trained in fp32 on a CPU, beside HF
Trainer on the same model. Made by `python benchmarks/memory/run.py` on {result["date"]} at commit {result["commit"]};
the raw figures are in `results/`.

{table(result)}

Peaks are of torch's allocation events over two updates; weights, gradients and optimizer states are those alive at the
peak, the rest are activations, temporaries and the batch. Times are of {result["timed"]}: medians of ratios within the turns (as many as the JSON has); an
update of HF's default took {seconds.get("hf", float("nan")):.0f} s here. All full fine-tunings have fp32 weights and states but for the rung of 8-bit
states, and the same losses: {", ".join(f"{loss:.4f}" for loss in result["memory"].get("plain", {}).get("losses", []))} in the two updates. HF's default clips
(its memory is the same without), the rungs do not but for the one that says so.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="a tiny model, one turn; writes nothing")
    parser.add_argument("--only", nargs="*", help="only these contenders")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        what, name, size = given.measure
        print(json.dumps((measure_memory if what == "memory" else measure_time)(name, size)))
        return
    from contenders import CONTENDERS

    size = "tiny" if given.short else "full"
    result = run(given.only or list(CONTENDERS), size, 1 if given.short else given.turns)
    if given.short:
        print(table(result))
        sys.exit(any("error" in figures for figures in result["memory"].values()))
    path = write_result(HERE, result)
    written = json.loads(path.read_text())
    (HERE / "README.md").write_text(readme(written))
    print(table(written))


if __name__ == "__main__":
    main()
