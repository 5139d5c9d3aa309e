"""A recipe with what a plan has chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.core.job import AUTO
from snugfit.recipe import model as m
from snugfit.recipe.entries import own_key
from snugfit.recipe.parse import build
from snugfit.recipe.source import Places
from snugfit.recipe.write import as_dict

if TYPE_CHECKING:
    from snugfit.planner.answer import Choice


def with_choice(recipe: m.Recipe, choice: Choice) -> m.Recipe:
    """The recipe as the plan would run it: its micro-batch, its precision, how devices share it, and the techniques it adds.

    A micro-batch that is to be found on the device stays so, unless devices are to share the weights, which none can try by itself.
    """
    from snugfit.techniques import find

    tree = as_dict(recipe)
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


def _sequences(value: Any) -> Any:
    """Lists as the tuples that a recipe is read with."""
    if isinstance(value, Mapping):
        return {key: _sequences(entry) for key, entry in value.items()}
    return tuple(map(_sequences, value)) if isinstance(value, (list, tuple)) else value
