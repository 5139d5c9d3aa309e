"""Plans under budgets, trained under them: the choice runs, and beside the best of the others that were looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checks import Settings, check, release, require, spread, wait
from material import take_workspaces

from planner.cases import MODELS, material_of, step_of, timed, warm
from planner.predictions import PREDICTIONS, calibrated, predicted
from planner.subjects import BUDGETS, TOY_BUDGETS, Budgeted

REPEATS = 5
SLOWER = 1.15
"""Times the best rival's seconds that the choice may take: what predictions of time may be wrong by."""


def trained(
    settings: Settings, budgeted: Budgeted, model: Any, window: Any, candidate: Any, share: float
) -> dict[str, Any]:
    """Return seconds and peaks of updates of a plan, with no more of the device's memory than its budget."""
    import torch

    release(settings.device)
    if settings.cuda:
        torch.cuda.set_per_process_memory_fraction(share)
        torch.cuda.reset_peak_memory_stats()
    figures: dict[str, Any] = {
        "plan": candidate.rung,
        "predicted_seconds": candidate.prediction.seconds_per_update,
        "predicted_reserved": candidate.prediction.reserved_bytes,
    }
    try:
        loss = MODELS[budgeted.model].loss
        step = step_of(settings, model, window, loss, candidate.techniques, candidate.micro_batch)
        warm(step, window)
        seconds = [timed(step, window, settings.device) for _ in range(REPEATS)]
        figures |= {"seconds": spread(seconds), "finer": (step.micro_batch or 0) != candidate.micro_batch}
    except Exception as error:  # noqa: BLE001 (a plan that does not run is what is looked for)
        figures["error"] = f"{type(error).__name__}: {error}"[:600]
    if settings.cuda:
        wait("cuda")
        figures["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        torch.cuda.set_per_process_memory_fraction(1.0)
    return figures


def planned_and_trained(settings: Settings, budgeted: Budgeted) -> Mapping[str, Any]:
    device = calibrated(settings)
    answer = predicted(settings, budgeted.name)
    require(answer["chosen"] is not None, "nothing fits", needed=answer["needed"])
    model, window = material_of(settings, budgeted.model)
    share = 1.0
    if settings.cuda:
        take_workspaces()
        # the context is no part of what the allocator may have
        share = min(1.0, (budgeted.bytes - device.reserved) / device.memory_bytes)
    figures: dict[str, Any] = {"planning_seconds": answer["planning_seconds"], "rivals": []}
    figures["choice"] = trained(settings, budgeted, model, window, answer["chosen"], share)
    settings.note(figures)
    for rival in answer["rivals"]:
        figures["rivals"].append(trained(settings, budgeted, model, window, rival, share))
        settings.note(figures)
    choice = figures["choice"]
    require("error" not in choice, f"the choice does not run: {choice.get('error')}", **figures)
    require(not choice["finer"], "the choice ran out of memory and was made finer", **figures)
    ran = [each["seconds"]["median"] for each in figures["rivals"] if "seconds" in each]
    if ran:
        figures["regret"] = choice["seconds"]["median"] / min(ran) - 1
        slow = settings.cuda and figures["regret"] > SLOWER - 1
        require(not slow, f"another plan that was looked at is {figures['regret']:.0%} faster", **figures)
    return figures


def _register(budgeted: Budgeted, toy: bool) -> None:
    @check(budgeted.name, 40, alone=True, needs=PREDICTIONS, only_toy=toy, only_whole=not toy)
    def of_budget(settings: Settings) -> Mapping[str, Any]:
        return planned_and_trained(settings, budgeted)


for _budgeted in BUDGETS:
    _register(_budgeted, toy=False)
for _budgeted in TOY_BUDGETS:
    _register(_budgeted, toy=True)
