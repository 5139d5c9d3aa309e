"""The micro-batches that fit, and the fastest of them, for recipes and for models in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from snugfit.core.batch import Batch
from snugfit.errors import OutOfMemory, SnugfitError
from snugfit.planner.devices.hardware import find_device
from snugfit.results.tool_results import new_folder
from snugfit.run.train_settings import TrainSettings, by_keywords, takes_settings
from snugfit.step.find_micro_batch import RESIDENT
from snugfit.step.micro_batch_sizes import legal_sizes
from snugfit.step.out_of_memory import advice
from snugfit.step.step import Step
from snugfit.system.memory import available_bytes
from snugfit.system.rounding import deterministic
from snugfit.tools.find_batch.measure import find_batch as try_sizes
from snugfit.tools.find_batch.measure import standing_bytes
from snugfit.tools.find_batch.result import TOOL, FoundBatch
from snugfit.tools.planner_figures import Predicted
from snugfit.tools.setup import Setup, module_setup, output_of, recipe_setup
from snugfit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


@takes_settings
def find_batch(
    model: nn.Module,
    data: Any,
    *,
    memory: int | str | None = None,
    timed_updates: int = 3,
    **settings: Unpack[TrainSettings],
) -> FoundBatch:
    """Try micro-batches of each size on a copy of `model`, on the largest examples of `data`, for memory and for time.

    Args:
        memory: that tensors may take of the device, in bytes or like "8GiB"; what is free there by default.
        timed_updates: of each size.
        settings: as of `snugfit.train`.
    Raises:
        UserError: a setting or the data cannot be used.
        OutOfMemory: nothing fits.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> rows = [(torch.randn(4), number % 3) for number in range(16)]
    >>> result = find_batch(torch.nn.Linear(4, 3), rows, global_batch=4)
    >>> [(row.micro_batch, row.verdict) for row in result.rows], result.largest
    ([(1, 'fits'), (2, 'fits'), (4, 'fits')], 4)
    """
    budget = None if memory is None else parse_bytes(memory, "memory")
    setup = module_setup(model, data, **settings)
    with by_keywords({"updates": "timed_updates"}):
        return _search(setup, budget, timed_updates, lambda _: None)


def find_batch_recipe(
    recipe: Recipe,
    *,
    memory_bytes: int | None = None,
    updates: int = 3,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[FoundBatch, Path]:
    """Try micro-batches on what a recipe trains; the result is kept beside its runs, with a page.

    Returns:
        What was found, and its page.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
        OutOfMemory: nothing fits.
    """
    setup, task = recipe_setup(recipe)
    for message in task.messages:
        tell(message)
    result = _search(setup, memory_bytes, updates, tell)
    return result, result.save(new_folder(output_of(recipe), recipe.name, TOOL))


def _search(setup: Setup, memory_bytes: int | None, updates: int, tell: Callable[[str], None]) -> FoundBatch:
    window, longest = setup.loader().worst_window()
    validation = setup.validation()
    step = setup.step(plan=replace(setup.plan, micro_batch=None))
    if step.device.type == "cpu":
        _check_first_update(setup, step, window, tell)
    with deterministic(setup.plan.deterministic):
        result = try_sizes(
            step,
            window,
            evaluation=None if validation is None else validation.worst_window()[0],
            longest=longest,
            memory_bytes=memory_bytes,
            updates=updates,
            tell=tell,
        )
    return replace(result, name=setup.name, identity=setup.identity)


def _check_first_update(setup: Setup, step: Step, window: Batch, tell: Callable[[str], None]) -> None:
    """Predict the update that makes the states before it is made: a CPU refuses nothing, and ends the process instead.

    Raises:
        OutOfMemory: what it takes beyond what is there already is more than there is.
    """
    left = available_bytes(step.device)
    if left is None:
        return
    size = legal_sizes(step, window.rows, step.seams.batch(window, step.progress, step.seed).group)[-1]
    try:
        peak = Predicted(setup, find_device("cpu"), size).first_update().peak_bytes
    except SnugfitError as error:
        tell(f"whether the first update fits is not known before it is made: {error}")
        return
    need, limit = peak - standing_bytes(step), round(left / RESIDENT)
    if need > limit:
        raise OutOfMemory(
            f"memory: an update of {size} of the largest examples, with the states that it makes, is predicted to take {format_bytes(need)} "
            f"beside the model, and {format_bytes(limit)} can be had. {advice(step.seams.names)}"
        )
