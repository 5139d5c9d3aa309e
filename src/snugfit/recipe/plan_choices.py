"""A recipe with what a plan has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from snugfit.core.entry import as_entry
from snugfit.core.job import AUTO
from snugfit.core.selection import check
from snugfit.core.technique import Fidelity
from snugfit.errors import PlanConflict
from snugfit.planner.choice.rungs import together
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.devices.precision import usual_precision
from snugfit.recipe import declarations as m
from snugfit.recipe.entries import FULL, own_key
from snugfit.recipe.load import build
from snugfit.recipe.strict_yaml import Places
from snugfit.recipe.write import as_dict
from snugfit.step.build import find_device

if TYPE_CHECKING:
    from snugfit.planner.answers.answer import Choice
    from snugfit.planner.devices.device import Device


def with_choice(recipe: m.Recipe, choice: Choice) -> m.Recipe:
    """Return the recipe as the plan would run it: its micro-batch, its precision, how devices share it, and the techniques it adds.

    A micro-batch that is to be found on the device stays so, unless devices are to share the weights, which none can try by itself.
    """
    from snugfit.techniques import find

    tree = as_dict(recipe)
    tree["plan"]["numerics"] = FULL  # unless one of the techniques is a precision
    techniques: list[Any] = []
    for entry in choice.techniques:
        ((name, settings),) = entry.items()
        key = own_key(find(name))
        if key == "plan.numerics":
            tree["plan"]["numerics"] = {name: settings} if settings else name
        elif key is not None:
            tree[key] = entry
        else:
            techniques.append(entry)
    tree["techniques"] = techniques
    tree["track"]["uri"] = recipe.track.uri  # plain values leave its password out
    if choice.devices > 1:
        tree["plan"]["strategy"] = choice.strategy
    if recipe.plan.micro_batch != AUTO or choice.strategy not in ("single", "ddp"):
        tree["plan"]["micro_batch"] = choice.micro_batch
    return build(_sequences(tree), (), Places("the plan"), folder=recipe.folder, name=recipe.name)


def chosen_for(recipe: m.Recipe, choice: Choice) -> Choice:
    """Return a choice with the recipe's own settings in its techniques: it was made for one that may have had other learning rates."""
    own = recipe.all_techniques()
    names = {each.card.name for each in own}
    added = [each for each in with_choice(recipe, choice).all_techniques() if each.card.name not in names]
    return replace(choice, techniques=tuple(as_entry(each) for each in together(own, added)))


def with_usual_precision(recipe: m.Recipe, device: Device | None) -> tuple[m.Recipe, list[str]]:
    """Return the recipe with the precision that is usual on a device where it names none, and what is to be said of it.

    Args:
        device: None for one that has no 16-bit units.
    """
    if recipe.plan.numerics is not None:
        return recipe, []
    messages: list[str] = []
    precision = (
        None if device is None or recipe.budget.fidelity == Fidelity.FULL.label else usual_precision(device)
    )
    if precision is not None:
        try:
            check((*recipe.all_techniques(), precision))
        except PlanConflict as conflict:
            messages.append(f"plan.numerics: it computes in {FULL}. {conflict}")
            precision = None
    plan = replace(recipe.plan, numerics=FULL if precision is None else precision)
    return replace(recipe, plan=plan), messages


def with_precision_here(recipe: m.Recipe) -> tuple[m.Recipe, list[str]]:
    """Return what `with_usual_precision` does for the device of this machine that the recipe runs on."""
    kind = torch.device(find_device(recipe.plan.device)).type
    return with_usual_precision(recipe, uncalibrated(kind) if kind == "cuda" else None)


def _sequences(value: Any) -> Any:
    """Return lists as the tuples that a recipe is read with."""
    if isinstance(value, Mapping):
        return {key: _sequences(entry) for key, entry in value.items()}
    return tuple(map(_sequences, value)) if isinstance(value, (list, tuple)) else value
