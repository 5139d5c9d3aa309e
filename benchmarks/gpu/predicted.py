"""Is the planner right on this device? It is measured once; then each case is planned in a process that sees no GPU, and run.

Compared is what a plan says with what torch counts: bytes allocated and reserved at the peak, from putting the step together to
making what is saved, and the median time of an update. The workspaces of cuBLAS and the CUDA context are there before the first
tensor of a case: the planner counts them together, beside what the step asks for (`reserved` of a device), so that here both
figures are compared without them, and `device_bytes` with them. The allocator is in its default mode, which the planner replays.

Without a GPU (`--toy`) the same is done with a few tiny cases; there the bytes are those of torch's allocations on the host.
"""

from __future__ import annotations

import copy
import gc
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from shapes import DEVICE, Result
from subjects import CASES, MODELS, TOY_CASES, Case
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.job import Job, Plan
from snugfit.core.skeleton import skeleton
from snugfit.errors import SnugfitError
from snugfit.planner.answer import Prediction
from snugfit.planner.calibrate import calibrate
from snugfit.planner.device import Device, Machine
from snugfit.planner.dryrun import Subject
from snugfit.planner.elsewhere import elsewhere
from snugfit.planner.hardware import find_device, uncalibrated
from snugfit.planner.predict import Planner
from snugfit.planner.worker import Worker
from snugfit.training.assemble import Material, make_step
from snugfit.training.step import Step

sys.path.append(str(Path(__file__).parents[1] / "planner"))

GOALS = {"allocated": 0.02, "reserved": 0.05, "seconds": 0.15}
"""Of the error of each case."""

UPDATES = 1000
"""That a run is said to have."""

WARM, REPEATS = 3, 7

PLANNING = 150.0
"""Seconds that all predictions may take together."""


def subject_of(case: Case, toy: bool) -> Subject:
    """What the planner is told: neither the weights nor the device are there."""
    made = MODELS[case.model]
    with torch.device("meta"):
        bare = made.make(toy)
    window = Batch.of(made.data(toy))
    return Subject(
        lambda: skeleton(bare), window, job_of(window), window.rows * UPDATES, case.techniques(), made.loss
    )


def job_of(window: Batch) -> Job:
    return Job(global_batch=window.rows, epochs=None, windows=UPDATES)


def plans(
    questions: Sequence[tuple[Subject, Plan]], device: Device
) -> list[tuple[Prediction | SnugfitError, float]]:
    """What the planner says of each, in a process that sees no GPU, and how long it took."""
    machine = Machine(device, find_device("cpu"), device.kind)
    found: list[tuple[Prediction | SnugfitError, float]] = []
    pretended = nullcontext()
    if device.kind == "cuda":
        assert device.capability is not None
        pretended = elsewhere(device.capability, device.memory_bytes, device.name)
    with pretended:
        for subject, plan in questions:
            began = time.perf_counter()
            try:
                said: Prediction | SnugfitError = Planner(subject, machine).predict(plan, subject.techniques)
            except SnugfitError as error:
                said = error.with_traceback(None)
            found.append((said, time.perf_counter() - began))
    return found


def told(found: Prediction, device: Device) -> dict[str, float]:
    """What the planner says, under the names of what is measured."""
    beside = {"reserved": found.reserved_bytes - device.reserved, "device_bytes": found.reserved_bytes}
    return {
        "allocated": found.peak_bytes,
        "seconds": found.seconds_per_update,
        **(beside if device.kind == "cuda" else {}),
    }


def measured(case: Case, toy: bool) -> dict[str, float]:
    """A run with its peaks, from a model on the host, and the time of another one's updates."""
    torch.manual_seed(0)
    made = MODELS[case.model]
    with DEVICE:  # where weights are drawn sooner
        model = made.make(toy)
    model, window = model.cpu(), Batch.of(made.data(toy))

    def step_of() -> Step:
        # a copy, so that it is counted, and let go where a technique packs the weights
        material = Material(copy.deepcopy(model), range(window.rows * UPDATES), None, made.loss)
        plan = Plan(case.micro_batch, device=DEVICE.type)
        return make_step(job_of(window), plan, material, None, case.techniques())

    def run() -> None:
        step, examples = step_of(), copy.deepcopy(window)
        for _ in range(WARM):
            step(examples)
        with torch.no_grad(), step.averaged():
            if step.seams.export is not None:
                step.seams.export(step.model)

    found = peaks_on_gpu(run) if DEVICE.type == "cuda" else peaks_on_cpu(run)
    step = step_of()
    seconds = [timed(step, window) for _ in range(WARM + REPEATS)][WARM:]
    return {**found, "seconds": statistics.median(seconds)}


def timed(step: Step, window: Batch) -> float:
    """Seconds of one update, with all that it has the device do."""
    wait()
    began = time.perf_counter()
    step(window)
    wait()
    return time.perf_counter() - began


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def peaks_on_cpu(run: Callable[[], None]) -> dict[str, float]:
    from memory import allocated_peak

    return {"allocated": allocated_peak(run)}


def peaks_on_gpu(run: Callable[[], None]) -> dict[str, float]:
    """What the allocator counts, beyond what is there before."""
    gc.collect()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    wait()
    free, whole = torch.cuda.mem_get_info()
    beside = whole - free - torch.cuda.memory_reserved()
    most, most_reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {
        "allocated_before": allocated,
        "reserved_before": reserved,
        "allocated": most - allocated,
        "reserved": most_reserved - reserved,
        "device_bytes": most_reserved + beside,
    }


def take_workspaces() -> None:
    """Have cuBLAS take its workspaces, for forward and for the thread of backward."""
    if DEVICE.type == "cuda":
        layer = nn.Linear(64, 64, device=DEVICE)
        layer(torch.ones(64, 64, device=DEVICE)).sum().backward()
        wait()


def compare(case: Case, found: Prediction | SnugfitError, device: Device, toy: bool) -> dict[str, Any]:
    """One case: predicted beside measured."""
    row: dict[str, Any] = {"case": case.name}
    if isinstance(found, SnugfitError):
        return {**row, "error": f"no plan: {found}"}
    said = told(found, device)
    row |= {"predicted": said, "confidence": dict(found.confidence), "peak_at": dict(found.peak_at)}
    try:
        ran = measured(case, toy)
    except Exception:  # noqa: BLE001 (whatever it is, the other cases are to be seen)
        return {**row, "error": traceback.format_exc(limit=-2)[-400:]}
    return {**row, "measured": ran, "errors": {name: said[name] / ran[name] - 1 for name in said}}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """For each goal: how many cases hold it, and the worst and the median error."""
    found: dict[str, Any] = {}
    for name, goal in GOALS.items():
        errors = {row["case"]: abs(row["errors"][name]) for row in rows if name in row.get("errors", ())}
        if errors:
            found[name] = {
                "goal": goal,
                "held": sum(error <= goal for error in errors.values()),
                "of": len(rows),
                "median": statistics.median(errors.values()),
                "worst": max(errors.values()),
                "worst_case": max(errors, key=lambda case: errors[case]),
            }
    return found


def main() -> None:
    result = Result()
    cases = TOY_CASES if result.toy else CASES
    worker = Worker()
    with (
        tempfile.TemporaryDirectory() as cache,
        mock.patch.dict(os.environ, {"XDG_CACHE_HOME": cache}),  # the user's own calibration stays
    ):
        device = uncalibrated(DEVICE.type) if result.toy else calibrate(DEVICE)
    result["device"] = asdict(device)
    questions = [(subject_of(case, result.toy), Plan(case.micro_batch, device=DEVICE.type)) for case in cases]
    answers = worker.run(plans, questions, device, timeout=PLANNING)
    take_workspaces()
    rows: list[dict[str, Any]] = []
    for case, (found, seconds) in zip(cases, answers, strict=True):
        rows.append(compare(case, found, device, result.toy) | {"planning_seconds": seconds})
        result["cases"] = rows
    result["summary"] = summary(rows)


if __name__ == "__main__":
    main()
