"""How near does the planner come to the memory of a run? Predicted, and measured on this CPU.

    python benchmarks/planner/memory.py             all cases, minutes on two cores; writes results/ and README.md
    python benchmarks/planner/memory.py --quick     a few of them; writes nothing
    python benchmarks/planner/memory.py --only t5   the cases whose name holds a text; writes nothing

*Allocated*: models from their configs, trained for a few updates, and evaluated where the case says so. The peak is of torch's
allocation events (the profiler's), which count what kernels take within an operator; the weights and the window are in it. *Resident*: the same in a process of its own, by the operating system's account, with malloc as a run has it.
*Depth*: the prediction from few blocks and micro-batches, beside that from all of them.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from cases import CASES, MODELS, QUICK, UPDATES, Case  # noqa: E402
from common import write_result  # noqa: E402


from snugfit.core.batch import Batch  # noqa: E402
from snugfit.core.malloc import resident_bytes, tune_malloc  # noqa: E402
from snugfit.errors import UserError  # noqa: E402
from snugfit.planner.answer import Prediction  # noqa: E402
from snugfit.planner.hardware import uncalibrated  # noqa: E402
from snugfit.planner.predict import Machine, Planner  # noqa: E402
from snugfit.training.assemble import Material, make_step  # noqa: E402
from snugfit.training.evaluate import Scored, evaluate  # noqa: E402

BOUNDS = {"transformer": 0.005, "convolution": 0.015, "other": 0.015}
"""Of the error of a case, by the kind of its model."""

MEDIAN, RESIDENT = 0.001, 0.03


def predicted(case: Case, model: nn.Module, window: Batch, whole: bool = False) -> tuple[Prediction, float]:
    """What the planner says, and the seconds that it took."""
    subject = case.subject(model, window)
    cpu = uncalibrated("cpu")
    began = time.perf_counter()
    found = Planner(subject, Machine(cpu, cpu), whole).predict(case.plan, subject.techniques)
    return found, time.perf_counter() - began


def train(case: Case, model: nn.Module, window: Batch) -> None:
    """The run: the step is put together, the updates, the evaluation, and what is saved of the model is made."""
    subject = case.subject(model, window)
    material = Material(model, range(subject.examples), None, subject.loss)
    step = make_step(subject.job, case.plan, material, None, subject.techniques)
    for _ in range(UPDATES):
        step(window)
    if subject.evaluation is not None:
        rows = min(window.rows, case.micro_batch or window.rows)
        evaluate(Scored.of(step), [window.select(range(rows))], {})
    with torch.no_grad(), step.averaged():
        if step.seams.export is not None:
            step.seams.export(step.model)


def allocated_peak(run: Callable[[], None]) -> int:
    """The most bytes that a run had allocated at a time, by the profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def compare(case: Case) -> dict[str, Any]:
    """One case: predicted beside measured."""
    torch.manual_seed(0)
    made = MODELS[case.model]
    model, window = made.make(), Batch.of(made.data())
    row: dict[str, Any] = {"case": case.name, "model": case.model, "kind": made.kind}
    try:
        found, seconds = predicted(case, model, window)
    except UserError as error:
        return {**row, "refused": str(error)}
    # copies, so that their memory is counted, and that it is let go where a technique packs the weights
    measured = allocated_peak(lambda: train(case, copy.deepcopy(model), copy.deepcopy(window)))
    return {
        **row,
        "predicted_bytes": found.peak_bytes,
        "measured_bytes": measured,
        "error": found.peak_bytes / measured - 1,
        "peak_at": found.peak_at,
        "confidence": found.confidence["memory"],
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cases")
    parser.add_argument("--only", help="cases whose name holds this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [CASES[place] for place in QUICK] if asked.quick else list(CASES)
    chosen = [case for case in chosen if asked.only is None or asked.only in case.name]
    rows = allocated(chosen)


if __name__ == "__main__":
    main()
