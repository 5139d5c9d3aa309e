"""How near does the planner come to the memory of a run? Predicted, and measured on this CPU.

    python benchmarks/planner/memory.py             all cases, minutes on two cores; writes results/ and memory.md
    python benchmarks/planner/memory.py --quick     a few of them; writes nothing
    python benchmarks/planner/memory.py --only t5   the cases whose name holds a text; writes nothing

*Allocated*: models from their configs, trained for a few updates, and evaluated where the case says so. The peak is of torch's
allocation events (the profiler's), which count what kernels take within an operator; weights and windows are in it. *Resident*: the same in a process of its own, by the operating system's account, with malloc as a run has it.
*Depth*: the prediction from few blocks and micro-batches, beside that from all of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from cases import CASES, QUICK, RESIDENT_CASES, UPDATES, Case  # noqa: E402
from common import write_result  # noqa: E402
from deep import DEEP  # noqa: E402

from snugfit.core.batch import Batch  # noqa: E402
from snugfit.errors import UserError  # noqa: E402
from snugfit.planner.answers.answer import Prediction  # noqa: E402
from snugfit.planner.devices.device import Machine  # noqa: E402
from snugfit.planner.devices.hardware import uncalibrated  # noqa: E402
from snugfit.planner.prediction.plan_needs import Planner  # noqa: E402
from snugfit.step.build import Material, make_step  # noqa: E402
from snugfit.step.evaluate import Scored, evaluate  # noqa: E402
from snugfit.system.malloc import resident_bytes, tune_malloc  # noqa: E402
from snugfit.system.memory import memory_bytes  # noqa: E402

BOUNDS = {"transformer": 0.005, "convolution": 0.015, "other": 0.015}
"""Of the error of a case, by the kind of its model."""

MIB = 2**20


def predicted(case: Case, model: nn.Module, window: Batch, whole: bool = False) -> tuple[Prediction, float]:
    """Return what the planner says, and the seconds that it took."""
    subject = case.subject(model, window)
    cpu = uncalibrated("cpu")
    began = time.perf_counter()
    prediction = Planner(subject, Machine(cpu, cpu), whole).predict(case.plan, subject.techniques)
    return prediction, time.perf_counter() - began


def train(case: Case, model: nn.Module, window: Batch) -> None:
    """Run it: put the step together, make the updates, evaluate, and make what is saved of the model."""
    subject = case.subject(model, window)
    material = Material(model, range(subject.examples), None, subject.loss)
    step = make_step(subject.job, case.plan, material, None, subject.techniques)
    for _ in range(UPDATES):
        step(copy.deepcopy(window))  # whose memory counts while it is trained on
    if subject.evaluation is not None:
        evaluate(Scored.of(step), [copy.deepcopy(window)], {})
    with torch.no_grad(), step.averaged():
        if step.seams.export is not None:
            step.seams.export(step.model)


def allocated_peak(run: Callable[[], None]) -> int:
    """Return the most bytes that a run had allocated at a time, by the profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def compare(case: Case) -> dict[str, Any]:
    """Return one case: predicted beside measured."""
    torch.manual_seed(0)
    made = case.made
    model, window = made.make(), Batch.of(made.data())
    row: dict[str, Any] = {"case": case.name, "model": case.model, "kind": made.kind}
    try:
        prediction, seconds = predicted(case, model, window)
    except UserError as error:
        return {**row, "refused": str(error)}
    # a copy, so that its memory is counted, and that it is let go where a technique packs the weights
    measured = allocated_peak(lambda: train(case, copy.deepcopy(model), window))
    return {
        **row,
        "predicted_bytes": prediction.peak_bytes,
        "measured_bytes": measured,
        "error": prediction.peak_bytes / measured - 1,
        "peak_at": prediction.peak_at,
        "confidence": prediction.confidence["memory"],
        "seconds": seconds,
    }


def allocated(cases: Iterable[Case]) -> list[dict[str, Any]]:
    rows = []
    for case in cases:
        rows.append(row := compare(case))
        if "refused" in row:
            print(f"{row['case']:55} refused: {row['refused']}", flush=True)
        else:
            print(
                f"{row['case']:55} predicted {row['predicted_bytes']:>12,} measured {row['measured_bytes']:>12,} "
                f"{row['error']:+.3%} in {row['seconds']:.2f} s",
                flush=True,
            )
    return rows


def depth(cases: Iterable[Case]) -> list[dict[str, Any]]:
    """Return the prediction from few blocks and micro-batches beside that from all of them."""
    rows = []
    for case in cases:
        torch.manual_seed(0)
        model, window = case.made.make(), Batch.of(case.made.data())
        (quick, seconds), (whole, all_seconds) = (
            predicted(case, model, window, whole=each) for each in (False, True)
        )
        same = (quick.peak_bytes, quick.peak_by_kind) == (whole.peak_bytes, whole.peak_by_kind)
        rows.append(
            {
                "case": case.name,
                "carried_on": "carried on" in quick.confidence["memory"],
                "peak_bytes": quick.peak_bytes,
                "peak_bytes_of_all": whole.peak_bytes,
                "same": same,
                "peak_by_kind": quick.peak_by_kind,
                "peak_by_kind_of_all": whole.peak_by_kind,
                "seconds": seconds,
                "seconds_of_all": all_seconds,
            }
        )
        row = rows[-1]
        print(
            f"{case.name:65} {quick.peak_bytes:>12,} from all {whole.peak_bytes:>12,} "
            f"{'the same' if same else 'NOT THE SAME'}{'' if row['carried_on'] else ', as all of it was run'}, "
            f"{seconds:.1f} s for {all_seconds:.1f} s",
            flush=True,
        )
    return rows


def resident(case: Case) -> dict[str, Any]:
    """Return the most that this process was resident with in a run, beside what is predicted; to be called in a fresh process."""
    import transformers  # noqa: F401

    if not tune_malloc():
        raise SystemExit("malloc is set up by the environment already, or is not glibc's: nothing to compare")
    torch.manual_seed(0)
    made, small = case.made, replace(case, model=case.model.removeprefix("large "))
    train(small, small.made.make(), Batch.of(small.made.data()))  # loads the libraries that such a run loads
    window = Batch.of(made.data())
    baseline = memory_bytes(torch.device("cpu"))
    train(case, made.make(), window)
    measured = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    prediction, _ = predicted(case, made.make(), window)
    predicted_bytes = resident_bytes(prediction.peak_bytes, baseline)
    return {
        "case": case.name,
        "baseline_bytes": baseline,
        "allocated_bytes": prediction.peak_bytes,
        "predicted_bytes": predicted_bytes,
        "measured_bytes": measured,
        "error": predicted_bytes / measured - 1,
    }


def in_process(number: int) -> dict[str, Any]:
    name = RESIDENT_CASES[number].name
    done = own_process("--resident", str(number))
    if done is None:
        return {"case": name, "failed": "the process died"}
    (row,) = done
    print(
        f"{name:55} predicted {row['predicted_bytes']:>13,} resident {row['measured_bytes']:>13,} {row['error']:+.2%}",
        flush=True,
    )
    return dict(row)


def own_process(*arguments: str) -> list[dict[str, Any]] | None:
    """Return what this script prints in a process of its own; None where that died, which is told."""
    command = [sys.executable, "-W", "ignore", str(HERE / "memory.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"FAILED with {done.returncode}: {' '.join(arguments)}", flush=True)
        return None
    lines = done.stdout.strip().splitlines()
    print("\n".join(line for line in lines[:-1] if "predicted" in line or "from all" in line), flush=True)
    rows: list[dict[str, Any]] = json.loads(lines[-1])
    return rows


def of_each(flag: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of each of these, in a process of its own."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        rows += own_process(flag, name) or [{"case": name, "failed": "the process died"}]
    return rows


def summary(
    rows: list[dict[str, Any]], resident: list[dict[str, Any]], deep: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what of the bounds holds."""
    errors = {
        kind: [abs(row["error"]) for row in rows if "error" in row and row["kind"] == kind] for kind in BOUNDS
    }
    every = [error for kind in errors.values() for error in kind]
    return {
        "cases": len(every),
        "refused": sum("refused" in row for row in rows),
        "median": statistics.median(every),
        "worst": {kind: max(errors_of_kind, default=0.0) for kind, errors_of_kind in errors.items()},
        "resident_worst": max((abs(row["error"]) for row in resident if "error" in row), default=0.0),
        "deep_the_same": sum(row.get("same", False) for row in deep),
        "deep": len(deep),
    }


def readme(result: dict[str, Any]) -> str:
    bounds = result["summary"]
    lines = [
        "| case | predicted, MiB | measured, MiB | error | seconds to predict |",
        "|---|---|---|---|---|",
    ]
    for row in result["allocated"]:
        if "error" not in row:
            lines.append(f"| {row['case']} | {row.get('refused') or row['failed']} | | | |")
            continue
        lines.append(
            f"| {row['case']} | {row['predicted_bytes'] / MIB:,.2f} | {row['measured_bytes'] / MIB:,.2f} | {row['error']:+.3%} "
            f"| {row['seconds']:.1f} |"
        )
    process = ["| case | predicted, MiB | resident, MiB | error |", "|---|---|---|---|"]
    process += [
        f"| {row['case']} | {row['predicted_bytes'] / MIB:,.0f} | {row['measured_bytes'] / MIB:,.0f} | {row['error']:+.2%} |"
        for row in result["resident"]
        if "error" in row
    ]
    deep = ["| case | from few, bytes | from all, bytes | the same, also by kind |", "|---|---|---|---|"]
    deep += [
        f"| {row['case']} | {row['peak_bytes']:,} | {row['peak_bytes_of_all']:,} | {'yes' if row['same'] else 'no'} |"
        for row in result["deep"]
        if "same" in row
    ]
    worst = ", ".join(f"{kind} {error:.3%}" for kind, error in bounds["worst"].items())
    new = "\n"
    return f"""# How near does the planner come to the memory of a run?

Made by `python benchmarks/planner/memory.py` on {result["date"]} at commit {result["commit"]}; the raw figures are in `results/`. The
other benchmarks of this folder: `workspace.py` (what kernels take within an operator), `speed.py` (how long a plan takes).

Models from their configs, trained for {UPDATES} updates on a CPU with one thread, evaluated where the case says so, and made ready to be
saved. Of {bounds["cases"]} cases the median error is {bounds["median"]:.4%}; the worst by kind of model: {worst}.

## Allocated: the profiler's peak

{new.join(lines)}

## Resident: the operating system's

In a process of its own each, with malloc as a run has it; predicted is the baseline with the libraries loaded, what is allocated, and
8 MB of overhead. The worst is {bounds["resident_worst"]:.2%}.

{new.join(process)}

## Depth: from few blocks and micro-batches, and from all

{bounds["deep_the_same"]} of {bounds["deep"]} are the same to the byte.

{new.join(deep)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--only", help="cases whose name holds this")
    for hidden in ("--resident", "--model", "--deep"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.resident is not None:
        print(json.dumps([resident(RESIDENT_CASES[int(asked.resident)])]))
        return
    if asked.model is not None:
        print(json.dumps(allocated(case for case in CASES if case.model == asked.model)))
        return
    if asked.deep is not None:
        print(json.dumps(depth(case for case in DEEP if case.name == asked.deep)))
        return
    if asked.quick or asked.only:
        cases = [CASES[place] for place in QUICK] if asked.quick else list(CASES)
        allocated(case for case in cases if asked.only is None or asked.only in case.name)
        depth(DEEP[:1] if asked.quick else [case for case in DEEP if asked.only in case.name])
        return
    rows = of_each("--model", (case.model for case in CASES))
    deep = of_each("--deep", (case.name for case in DEEP))
    of_processes = [in_process(number) for number, _ in enumerate(RESIDENT_CASES)]
    bounds = summary(rows, of_processes, deep)
    print(json.dumps(bounds, indent=1))
    path = write_result(
        HERE, {"summary": bounds, "allocated": rows, "resident": of_processes, "deep": deep}, "memory"
    )
    (HERE / "memory.md").write_text(readme(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
