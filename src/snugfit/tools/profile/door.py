"""`profile` on a recipe, and on a model and data in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.results.tool_results import keep, new_folder
from snugfit.run.train_settings import DEFAULTS, TrainSettings, by_keywords, takes_settings
from snugfit.system.rounding import deterministic
from snugfit.tools.profile.measure import UPDATES, profile_setup
from snugfit.tools.profile.page import NAME, write_profile_page
from snugfit.tools.profile.result import Detail, Profile
from snugfit.tools.setup import Setup, module_setup, output_of, recipe_setup

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

TOOL = "profile"
Tell = Callable[[str], None]


def profile_recipe(
    recipe: Recipe,
    *,
    updates: int = UPDATES,
    memory: bool = False,
    tensorboard: bool = False,
    detail: Detail = Detail(),  # noqa: B008 (frozen)
    tell: Tell = lambda _: None,
) -> Profile:
    """Profile a recipe, and keep what was found with its page beside the recipe's runs.

    Args:
        detail: what is told of the operators, and their order.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
        TrainingFailed: an update failed.
    """
    setup, task = recipe_setup(recipe)
    for message in task.messages:
        tell(message)
    return _profile_and_save(setup, output_of(recipe), updates, memory, tensorboard, detail, tell)


@takes_settings
def profile(
    model: nn.Module,
    data: Any,
    *,
    steps: int = UPDATES,
    memory: bool = False,
    tensorboard: bool = False,
    shapes: bool = False,
    stacks: bool = False,
    sort: str | None = None,
    tell: Tell = lambda _: None,
    **settings: Unpack[TrainSettings],
) -> Profile:
    """Return what training `model` spends its time on, and what limits it; the model stays as it is.

    Args:
        data: as `sf.train` takes it, or a DataLoader.
        steps: updates that are timed, and again as many that are profiled.
        memory: also look at what the memory of an update consists of.
        tensorboard: also write the trace for TensorBoard's plug-in.
        shapes: also tell the shapes of the operators' inputs.
        stacks: also tell the functions of your code that the operators come from; this makes profiled updates slower.
        sort: operators by their time on the "device" or on the "host"; by default the device's where it has one of its own.
        settings: as `sf.train` has them; under `output`, trace, table and page are kept.
    Returns:
        The profile: `phases`, `culprits`, `verdict`, `advice`, `flops_per_update`, `folder`; `as_dict()` has plain values.
    Raises:
        UserError: a setting or the data cannot be used.
        TrainingFailed: an update failed.
    """
    output = settings.pop("output", DEFAULTS["output"])
    if output is None:
        raise SettingError(
            "output", "got None, and a profile is a table, a trace and a page", "Give a folder."
        )
    setup, detail = module_setup(model, data, **settings), Detail(shapes, stacks, sort)
    with by_keywords({"updates": "steps"}):
        return _profile_and_save(setup, Path(output), steps, memory, tensorboard, detail, tell)


def _profile_and_save(
    setup: Setup, output: Path, updates: int, memory: bool, tensorboard: bool, detail: Detail, tell: Tell
) -> Profile:
    detail.sorted_by(torch.device(setup.plan.device).type)  # refused before there is a folder
    folder = new_folder(output, setup.name, TOOL)
    with deterministic(setup.plan.deterministic):
        result = profile_setup(
            setup, folder, updates=updates, memory=memory, tensorboard=tensorboard, detail=detail, tell=tell
        )
    keep(folder, TOOL, setup.identity, result.verdict, result.as_dict())
    write_profile_page(result, folder / NAME)
    return result
