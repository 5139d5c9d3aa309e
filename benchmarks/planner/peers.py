"""How much memory will it take, and how large may the batch be? The planner beside what others offer for that.

    python benchmarks/planner/peers.py            minutes on two idle cores; writes results/ and its section of README.md
    python benchmarks/planner/peers.py --quick    two small models, a minute or two; writes nothing
    python benchmarks/planner/peers.py --only bert --only gpt2

Plain training in fp32 with AdamW, on a CPU. *How much*: what each says before anything runs, beside the peak of torch's allocation
events over two updates of a plain loop. *How large*: the largest batch that stays under a cap. CPUs do not run out of memory at a
cap, so an account of torch's allocations raises what an allocator raises; the answer is compared with the largest batch with which
the plain loop passes, and run. All start in a process that has its libraries; the planner starts one of its own, which is counted.

DeepSpeed is asked where it can be imported: its wheel is built from source, and torch must be there.
    pip install --no-deps --no-build-isolation --target /tmp/deepspeed deepspeed hjson py-cpuinfo einops msgpack
    PYTHONPATH=/tmp/deepspeed python benchmarks/planner/peers.py
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import put_on_page, write_result  # noqa: E402
from contenders import ESTIMATORS, FINDERS, PROBLEMS, QUICK, Capped, Problem, passes, train  # noqa: E402
from memory import allocated_peak  # noqa: E402

NO_CAP = 2**62
ASKED = ("accelerate", "deepspeed", "lightning", "transformers", "torch")
LIBRARIES = (
    "accelerate.commands.estimate",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "lightning.pytorch",
    "transformers.trainer",
)


def how_much(problem: Problem, model: nn.Module, peak: int) -> dict[str, Any]:
    """Return what each says, how far from the measured peak that is, and after how long."""
    estimates: dict[str, Any] = {}
    for name, ask in ESTIMATORS.items():
        began = time.perf_counter()
        try:
            estimate = ask(problem, model)
        except ModuleNotFoundError as error:
            estimates[name] = {"left_out": str(error)}
            continue
        estimates[name] = {
            "bytes": estimate,
            "error": estimate / peak - 1,
            "seconds": time.perf_counter() - began,
        }
        print(
            f"  {name:28} {estimate:>14,} bytes {estimate / peak - 1:+.2%} in {estimates[name]['seconds']:.2f} s",
            flush=True,
        )
    return estimates


def how_large(problem: Problem, model: nn.Module, cap: int) -> dict[str, Any]:
    """Return what each answers, how far from the truth that is, whether it passes, and after how long."""
    truth = largest(problem, model, cap)
    answers: dict[str, Any] = {}
    for name, ask in FINDERS.items():
        if name == "HF Trainer" and not isinstance(problem.data(), Mapping):
            answers[name] = {"left_out": "the model takes no mapping"}
            continue
        began = time.perf_counter()
        try:
            rows = ask(problem, model, cap)
        except ModuleNotFoundError as error:
            answers[name] = {"left_out": str(error)}
            continue
        seconds = time.perf_counter() - began
        answers[name] = {"rows": rows, "error": rows / truth - 1, "passes": rows <= truth, "seconds": seconds}
        print(f"  {name:28} {rows:>5} of {truth} in {seconds:.2f} s", flush=True)
    return {"truth": truth, "answers": answers}


def largest(problem: Problem, model: nn.Module, cap: int) -> int:
    """Return the largest batch with which the plain loop passes: from the one whose peak is the cap, upwards and downwards."""
    rows = problem.rows
    while not passes(problem, model, rows, cap):
        rows -= 1
    while passes(problem, model, rows + 1, cap):
        rows += 1
    return rows


def slowed(problem: Problem, model: nn.Module) -> float:
    """Return how many times longer the plain loop takes under the account, which the finders' seconds contain."""
    batch = problem.batch(problem.rows)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for counted, taken in times.items():
            began = time.perf_counter()
            if counted:
                with Capped(NO_CAP):
                    train(model, batch)
            else:
                train(model, batch)
            taken.append(time.perf_counter() - began)
    return statistics.median(times[True]) / statistics.median(times[False])


def compare(name: str) -> dict[str, Any]:
    """Return one model: both questions."""
    torch.manual_seed(0)
    problem = PROBLEMS[name]
    model = problem.make()
    batch = problem.batch(problem.rows)
    peak = allocated_peak(lambda: train(model, batch))
    with Capped(NO_CAP) as account:
        train(model, batch)
    print(f"{name}: {peak:,} bytes with {problem.rows} rows", flush=True)
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "rows": problem.rows,
        "start": problem.start,
        "peak_bytes": peak,
        "cap_bytes": account.peak,
        "how_much": how_much(problem, model, peak),
        "how_large": how_large(problem, model, account.peak),
        "slowed": slowed(problem, model),
    }


def load() -> None:
    """Import what is here of the others' packages, so that no answer's time has that in it."""
    for name in LIBRARIES:
        with suppress(ModuleNotFoundError):
            import_module(name)


def versions() -> dict[str, str | None]:
    package_versions: dict[str, str | None] = {}
    for package in ASKED:
        try:
            package_versions[package] = version(package)
        except PackageNotFoundError:
            package_versions[package] = None
    return package_versions


def table(models: Mapping[str, Any], question: str, cell: Any) -> str:
    """Return a row for each contender, a column for each model."""
    rows = next(iter(models.values()))
    names = list(rows[question].get("answers", rows[question]))
    lines = ["| | " + " | ".join(models) + " |", "|---" * (len(models) + 1) + "|"]
    for name in names:
        cells = [cell(each[question].get("answers", each[question])[name]) for each in models.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _much(row: Mapping[str, Any]) -> str:
    return "–" if "left_out" in row else f"{row['error']:+.1%}, {_time(row['seconds'])}"


def _large(row: Mapping[str, Any]) -> str:
    if "left_out" in row:
        return "–"
    return f"{row['rows']}{'' if row['passes'] else ' (too large)'}, {_time(row['seconds'])}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds:.1f} s"


def section(result: Mapping[str, Any]) -> str:
    """Return what README.md has of it."""
    models = result["models"]
    sizes = ", ".join(f"{name} {each['parameters'] / 1e6:.1f}M" for name, each in models.items())
    truth = ", ".join(str(each["how_large"]["truth"]) for each in models.values())
    slowed = max(each["slowed"] for each in models.values())
    used = ", ".join(f"{name} {number}" for name, number in result["versions"].items() if number)
    return f"""## Beside peers

Made by `python benchmarks/planner/peers.py` on {result["date"]} at commit {result["commit"]} ({used}). Plain fp32 training with AdamW;
parameters: {sizes}.

How much memory: the error of what is said, beside the peak of torch's allocation events in a plain loop, and the time until it is
said, in a process that has its libraries. `accelerate estimate-memory` counts float32 weights, gradients and Adam's states, for a batch
of 1; DeepSpeed's estimators count states of 16-bit training on one GPU, without offloading. Neither looks at the data or at activations, nor claims to.

{table(models, "how_much", _much)}

How large a batch under a cap (the largest that passes: {truth}), and after how long. Lightning's `scale_batch_size` from 2 with three steps a
trial, `power` as it is by default and `binsearch` without its margin of 5%; Accelerate's `find_executable_batch_size` and HF Trainer's
`auto_find_batch_size` from {" or ".join(sorted({str(each["start"]) for each in models.values()}, key=int))}, with two updates. Those run the model, here under an account of its allocations that makes a step at most {slowed:.1f} times
slower; a cap of a real device would cost nothing. The planner runs nothing, and its answer is for a device that need not be here.

{table(models, "how_large", _large)}

{losses(models)}"""


def losses(models: Mapping[str, Any]) -> str:
    """Return where the planner is behind, from the figures."""
    late = {name: _behind(each["how_much"]) for name, each in models.items()}
    slow = {name: _behind(each["how_large"]["answers"]) for name, each in models.items()}
    off = [
        name
        for name, each in models.items()
        if not each["how_large"]["answers"]["Snugfit"]["passes"]
        or each["how_large"]["answers"]["Snugfit"]["error"]
        < max(row.get("error", -1) for row in each["how_large"]["answers"].values() if row.get("passes"))
    ]
    slower = [f"{name}: {', '.join(others)}" for name, others in late.items() if others]
    slow_names = [f"{name}: {', '.join(others)}" for name, others in slow.items() if others]
    return "\n".join(
        [
            "Where the planner loses:",
            f"- sooner with how much: {'; '.join(slower) or 'nobody'}",
            f"- sooner with how large: {'; '.join(slow_names) or 'nobody'}",
            f"- nearer with how large, or the planner's too large: {', '.join(off) or 'nowhere'}",
        ]
    )


def _behind(rows: Mapping[str, Any]) -> list[str]:
    """Who answers before the planner."""
    ours = rows["Snugfit"]["seconds"]
    return [name for name, row in rows.items() if row.get("seconds", ours) < ours]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two small models")
    parser.add_argument("--only", action="append", choices=PROBLEMS, help="this model, or these")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    load()
    models = {name: compare(name) for name in asked.only or (QUICK if asked.quick else PROBLEMS)}
    if asked.quick or asked.only:
        print(section({"date": "-", "commit": "-", "versions": versions(), "models": models}))
        return
    path = write_result(HERE, {"versions": versions(), "models": models}, "peers")
    put_on_page(HERE / "README.md", "peers", section(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
