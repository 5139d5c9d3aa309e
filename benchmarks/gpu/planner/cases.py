"""Each case, predicted and run: bytes allocated and reserved at the peak, and the median time of an update.

The workspaces of cuBLAS and the context are there before the first tensor of a case: the planner counts them together, beside what the
step asks for (`reserved` of a device), so that both figures are compared without them, and `device_bytes` with them. The allocator is in
its default mode, which the planner replays. On a CPU the bytes are those of torch's allocations, and no time is compared.
"""

from __future__ import annotations

import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from checks import Settings, check, require, spread, wait
from material import take_workspaces

from planner.predictions import PREDICTIONS, calibrated, predicted
from planner.subjects import CASES, MODELS, TOY_CASES, UPDATES, Case, job_of

GOALS = {"allocated": 0.02, "reserved": 0.05, "seconds": 0.15}
"""Of the error of each case."""

WARM, REPEATS = 3, 7
MOST_WARM = 30
"""Updates until the factor of fp16's loss is low enough for one to be applied."""


@contextmanager
def a_tenth_is_forgotten() -> Iterator[None]:
    """Temporarily let predictions leave out a tenth of the peak."""
    from snugfit.planner.answers.answer import Prediction

    read: Callable[..., Any] = Prediction.__getattribute__

    def less(self: Any, name: str) -> Any:
        value = read(self, name)
        return int(value * 0.9) if name == "peak_bytes" else value

    with mock.patch.object(Prediction, "__getattribute__", less):
        yield


def figures_of(prediction: Any, device: Any) -> dict[str, float]:
    """Return what the planner says, under the names of what is measured."""
    if device.kind != "cuda":
        return {"allocated": prediction.peak_bytes}
    return {
        "allocated": prediction.peak_bytes,
        "reserved": prediction.reserved_bytes - device.reserved,
        "device_bytes": prediction.reserved_bytes,
        "seconds": prediction.seconds_per_update,
    }


def material_of(settings: Settings, model: str) -> tuple[Any, Any]:
    """Return a model on the host and the examples of an update."""
    import torch

    from snugfit.core.batch import Batch

    torch.manual_seed(0)
    made = MODELS[model]
    with torch.device(settings.device):  # where weights are drawn sooner
        module = made.make(settings.toy)
    window = Batch.of(made.data(settings.toy))
    return module.cpu(), window.pin_memory() if settings.cuda else window  # as a run's loader gives it


def step_of(
    settings: Settings, model: Any, window: Any, loss: str, techniques: Any, micro_batch: int | None
) -> Any:
    """Return a step as a run makes it; of a copy, so that it is counted, and let go where a technique packs the weights."""
    from snugfit.core.job import Plan
    from snugfit.step.build import Material, make_step

    material = Material(copy.deepcopy(model), range(window.rows * UPDATES), None, loss)
    return make_step(job_of(window), Plan(micro_batch, device=settings.device), material, None, techniques)


def measured(settings: Settings, case: Case) -> dict[str, Any]:
    """Return the peaks of a run, and the time of another one's updates."""
    import torch

    model, window = material_of(settings, case.model)

    def step() -> Any:
        return step_of(settings, model, window, MODELS[case.model].loss, case.techniques(), case.micro_batch)

    def run() -> None:
        one = step()
        warm(one, window)
        with torch.no_grad(), one.averaged():
            if one.seams.export is not None:
                one.seams.export(one.model)

    figures: dict[str, Any] = peaks_on_gpu(run) if settings.cuda else peaks_on_cpu(run)
    one = step()
    if settings.cuda:
        warm(one, window)
        times = [timed(one, window, settings.device) for _ in range(REPEATS)]
        figures |= {"seconds": statistics.median(times), "repeats": spread(times)}
        figures["kernels"] = sorted(one.kernels or ())
    return figures


def warm(step: Any, window: Any) -> None:
    """Make updates until one was applied that found the optimizer's state there: with fp16 the first ones are skipped.

    Raises:
        Wrong: none was.
    """
    applied = made = 0
    while made < WARM or applied < 2:
        require(made < MOST_WARM, f"only {applied} of {made} updates were applied")
        applied += step(window).applied
        made += 1


def timed(step: Any, window: Any, device: str) -> float:
    """Return the seconds of one update, with all that it has the device do."""
    wait(device)
    began = time.perf_counter()
    step(window)
    wait(device)
    return time.perf_counter() - began


def peaks_on_cpu(run: Callable[[], None]) -> dict[str, Any]:
    sys.path.append(str(Path(__file__).resolve().parents[2] / "planner"))
    from memory import allocated_peak

    return {"allocated": allocated_peak(run)}


def peaks_on_gpu(run: Callable[[], None]) -> dict[str, Any]:
    """Return what the allocator counts beyond what was there before."""
    import torch

    take_workspaces()
    gc.collect()
    torch.cuda.empty_cache()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    wait("cuda")
    free, whole = torch.cuda.mem_get_info()
    outside_bytes = whole - free - torch.cuda.memory_reserved()
    most, most_reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return {
        "allocated_before": allocated,
        "reserved_before": reserved,
        "allocated": most - allocated,
        "reserved": most_reserved - reserved,
        "device_bytes": most_reserved + outside_bytes,
        "beside_the_allocator": outside_bytes,
    }


def compare(settings: Settings, case: Case) -> Mapping[str, Any]:
    """Return one case, predicted beside measured.

    Raises:
        Wrong: an error is beyond its goal.
    """
    device = calibrated(settings)
    prediction = predicted(settings, case.name)["prediction"]
    forecast = figures_of(prediction, device)
    figures: dict[str, Any] = {
        "predicted": forecast,
        "confidence": dict(prediction.confidence),
        "peak_at": dict(prediction.peak_at),
    }
    settings.note(figures)
    ran = measured(settings, case)
    errors = {name: forecast[name] / ran[name] - 1 for name in forecast}
    figures |= {"measured": ran, "errors": errors}
    beyond = {
        name: round(errors[name], 3) for name, goal in GOALS.items() if abs(errors.get(name, 0.0)) > goal
    }
    require(not beyond, f"beyond the goals: {beyond}", **figures)
    return figures


def _register(case: Case, toy: bool) -> None:
    @check(
        f"predicted: {case.name}",
        25,
        alone=True,
        needs=PREDICTIONS,
        only_toy=toy,
        only_whole=not toy,
        plants={"forgotten": a_tenth_is_forgotten} if toy and case is TOY_CASES[0] else {},
    )
    def of_case(settings: Settings) -> Mapping[str, Any]:
        return compare(settings, case)


for _case in CASES:
    _register(_case, toy=False)
for _case in TOY_CASES:
    _register(_case, toy=True)
