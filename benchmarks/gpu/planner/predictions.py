"""The device is calibrated, and all that is compared later is predicted, in processes that see no GPU."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any
from unittest import mock

from checks import Settings, Skip, check, require

from planner.subjects import BUDGETS, CASES, TOY_BUDGETS, TOY_CASES, Budgeted, Case, subject_of

DEVICE, PREDICTIONS = "device.pickle", "predictions.pickle"
PLANNING = 100.0
"""Seconds that the predictions of one process may take."""
SEARCHING = 30.0
"""Seconds that the search under one budget may take."""
RIVALS = 2
"""Plans that are trained beside the choice."""


@contextmanager
def own_cache(settings: Settings) -> Any:
    """Temporarily keep calibrations in the command's folder, so that the user's stay as they are."""
    with mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(settings.shared)}):
        yield


def calibrated(settings: Settings) -> Any:
    """Return the device as it was measured in this command.

    Raises:
        Skip: it was not.
    """
    path = settings.shared / DEVICE
    if not path.exists():
        raise Skip("the device was not calibrated in this call")
    return pickle.loads(path.read_bytes())


def predicted(settings: Settings, name: str) -> Any:
    """Return what was predicted under a name.

    Raises:
        Skip: nothing was, in this call.
    """
    path = settings.shared / PREDICTIONS
    if not path.exists():
        raise Skip("nothing was predicted in this call")
    prediction = pickle.loads(path.read_bytes()).get(name)
    require(prediction is not None, f"{name}: the planner gave no answer in its time")
    if isinstance(prediction, str):
        require(False, f"{name}: no plan: {prediction}")
    return prediction


@check("calibration", 60, alone=True, leaves=DEVICE)
def calibration(settings: Settings) -> Mapping[str, Any]:
    """Measure the device; on a CPU the data sheet is taken, as its figures are no part of this."""
    import torch

    from snugfit.planner.calibration.calibrate import calibrate
    from snugfit.planner.devices.hardware import uncalibrated

    with own_cache(settings):
        sheet = uncalibrated(settings.device)
        device = sheet if settings.toy else calibrate(torch.device(settings.device))
    (settings.shared / DEVICE).write_bytes(pickle.dumps(device))
    shares = {
        name: value / sheet.flops[name] for name, value in device.flops.items() if sheet.flops.get(name)
    }
    over = {name: share for name, share in shares.items() if share > 1.1}
    figures = {"measured": asdict(device), "sheet": asdict(sheet), "share_of_sheet": shares}
    require(not over, f"more than the data sheet's FLOP/s were measured: {over}", **figures)
    return figures


def predict_here(questions: Sequence[Case | Budgeted], device: Any, toy: bool) -> dict[str, Any]:
    """Answer questions in this process, which sees no GPU: of a case its prediction, of a budget the choice and its rivals."""
    from snugfit.errors import SnugfitError
    from snugfit.planner.devices.device import Machine
    from snugfit.planner.devices.hardware import find_device
    from snugfit.planner.pretend_gpu.pretended_gpu import pretending_gpu

    machine = Machine(device, find_device("cpu"), device.kind)
    pretended: Any = nullcontext()
    if device.kind == "cuda":
        pretended = pretending_gpu(device.capability, device.memory_bytes, device.name)
    answers: dict[str, Any] = {}
    with pretended:
        for each in questions:
            began = time.perf_counter()
            try:
                answer = (
                    of_budget(each, machine, toy)
                    if isinstance(each, Budgeted)
                    else of_case(each, machine, toy)
                )
                answers[each.name] = {**answer, "planning_seconds": time.perf_counter() - began}
            except SnugfitError as error:
                answers[each.name] = f"{type(error).__name__}: {error}"
    return answers


def of_case(case: Case, machine: Any, toy: bool) -> dict[str, Any]:
    from snugfit.core.job import Plan
    from snugfit.planner.prediction.plan_needs import Planner

    subject = subject_of(case.model, case.techniques(), toy)
    plan = Plan(case.micro_batch, device=machine.device.kind)
    return {"prediction": Planner(subject, machine).predict(plan, subject.techniques)}


def of_budget(budgeted: Budgeted, machine: Any, toy: bool) -> dict[str, Any]:
    from snugfit.core.job import Plan
    from snugfit.core.technique import Fidelity
    from snugfit.planner.choice.candidate import Budget
    from snugfit.planner.plan import Request, explained, look_for
    from snugfit.planner.prediction.plan_needs import Planner

    subject = subject_of(budgeted.model, budgeted.techniques(), toy)
    there = min(budgeted.bytes, machine.device.memory_bytes)
    budget = Budget(there, fidelity=Fidelity.MIXED, margin=0.05)
    request = Request(Plan("auto", device=machine.device.kind), budget, seconds=SEARCHING)
    outcome = explained(look_for(Planner(subject, machine), request), request)
    choice = outcome.choice
    if choice is None:
        return {"chosen": None, "needed": dict(outcome.needed), "rivals": []}
    fitting = sorted(
        (each for each in outcome.search.tried if each.fits and not each.same(choice)),
        key=lambda each: each.prediction.seconds_per_update,
    )
    different = [each for each in fitting if each.techniques != choice.techniques][:RIVALS]
    return {"chosen": choice, "rivals": different, "needed": {}}


@check("predictions", 170, leaves=PREDICTIONS, needs=DEVICE)
def predictions(settings: Settings) -> Mapping[str, Any]:
    """Predict every case and plan for every budget, side by side in processes of the planner's own."""
    from snugfit.planner.worker import Worker

    device = calibrated(settings)
    cases: list[Any] = [*settings.size(CASES, TOY_CASES)]
    budgets: list[Any] = [*settings.size(BUDGETS, TOY_BUDGETS)]
    count = settings.size(min(8, max(2, (os.cpu_count() or 2) // 2)), 1)
    shares = [cases[place::count] for place in range(count)]
    for place, each in enumerate(budgets):
        shares[place % count] = [*shares[place % count], each]
    answers: dict[str, Any] = {}
    failed: list[str] = []

    def asked(share: Sequence[Any]) -> None:
        try:
            answers.update(
                Worker().run(predict_here, share, device, settings.toy, timeout=PLANNING + SEARCHING)
            )
        except Exception as error:  # noqa: BLE001 (what the others said is kept)
            failed.append(f"{type(error).__name__}: {error}"[:1000])

    with own_cache(settings), ThreadPoolExecutor(count) as threads:
        list(threads.map(asked, [share for share in shares if share]))
    (settings.shared / PREDICTIONS).write_bytes(pickle.dumps(answers))
    seconds = {
        name: row if isinstance(row, str) else round(row["planning_seconds"], 2)
        for name, row in answers.items()
    }
    require(not failed, f"the planner's process failed: {'; '.join(failed)}", seconds=seconds)
    unanswered = [name for name, row in answers.items() if isinstance(row, str)]
    require(not unanswered, f"no plan for {', '.join(unanswered)}", seconds=seconds)
    return {"seconds": seconds}
