"""Answers of a language model within a memory that does not hold its weights: planned, streamed, and those of the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks import Peaks, Settings, check, release, require
from material import take_workspaces

from correct.command_line import write_recipe
from correct.placement import late_weights
from correct.runs import trained

PROMPTS = ("The ", "To be ", "A plan ", "When it is ")
MORE = 1.1
"""Times the memory that was planned for beyond which a run has taken more."""


def written(settings: Settings, run: Path, memory: int | None) -> tuple[list[str], Any, int]:
    """Return answers, their plan, and the bytes of the device that were reserved for them at the peak."""
    import torch

    from snugfit.deliver.generate import load_generator
    from snugfit.deliver.generation_memory import within_memory
    from snugfit.kit.language_models.generation import Generation
    from snugfit.planner.devices.device import Machine
    from snugfit.planner.devices.hardware import find_device

    # on a CPU the host stands for a card of its own memory
    machine = None if settings.cuda else Machine(find_device("rtx4090"), find_device("cpu"), "cpu")
    release(settings.device)
    predictor = load_generator(run / "best", Generation(settings.size(64, 24), temperature=1.0))
    rows = [{"text": each} for each in PROMPTS[: settings.size(4, 1)]]
    lengths = [predictor.inference.length(each) for each in predictor.inference.encode(rows)]
    before = 0
    if settings.cuda:  # what cuBLAS takes is planned for beside what the answers take
        take_workspaces()
        before = torch.cuda.memory_reserved()
    peaks = Peaks(settings.device)
    peaks.begin()
    ready, plan = within_memory(predictor, lengths, memory, device=settings.device, machine=machine)
    texts = [str(each[ready.inference.columns[0]]) for each in ready.predict(rows)]
    return texts, plan, peaks.read().get("peak_reserved_bytes", before) - before


@check(
    "answers within a memory that is too small for the weights are those of the whole model",
    60,
    modules=("yaml", "tokenizers"),
    plants={"slot": late_weights},
)
def within_memory_of_less(settings: Settings) -> Mapping[str, Any]:
    from snugfit.planner.choice.candidate import margin_on
    from snugfit.planner.devices.hardware import uncalibrated

    recipe, _ = write_recipe(settings)
    changes = [f"train.updates={settings.size(40, 2)}", "plan.numerics=fp32", "plan.deterministic=false"]
    run = trained(recipe, settings, *changes)
    whole, plan, _ = written(settings, run, settings.size(None, 24 * 2**30))
    require(plan is not None and plan.streamed == 0, "with all the memory weights are streamed", plan=plan)
    require(all(whole), "the model writes nothing", answers=whole)
    less_bytes = plan.needed_bytes - settings.size(0.3, 0.1) * plan.weights_bytes
    memory = int(less_bytes / (1 - margin_on("cuda")))
    streamed, less, taken = written(settings, run, memory)
    reserved = uncalibrated("cuda").reserved if settings.cuda else 0
    figures = {
        "whole": str(plan),
        "streamed": str(less),
        "answers": [whole, streamed],
        "planned_bytes": less.needed_bytes - reserved,
        "reserved_bytes": taken,
    }
    require(less.streamed > 0, "nothing is streamed", **figures)
    require(whole == streamed, "streamed weights write other answers", **figures)
    require(taken <= MORE * figures["planned_bytes"], "answers take more memory than was planned", **figures)
    return figures
