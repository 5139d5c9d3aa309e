"""The model of a recipe: loaded by the function of a task, other models that it learns from, and the files that they are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError

if TYPE_CHECKING:
    from torch import nn

    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.tasks.task_recipe import TaskRecipe


def load_from(recipe: TaskRecipe, load: Callable[..., LoadedModel], keep: KeepPart | None) -> LoadedModel:
    """Return the recipe's model, with the options of loading that the recipe has.

    Args:
        load: a loader of transformers' models with the options that the task has.
        keep: what to keep of each weight that is read.
    """
    return load(
        recipe.model,
        seed=recipe.train.seed,
        from_scratch=recipe.from_scratch,
        techniques=recipe.all_techniques(),
        keep=keep,
    )


def trained_already(loaded: LoadedModel, name: str) -> nn.Module:
    """Return a model that another one learns from; one of which something had to be drawn anew has nothing to teach.

    Raises:
        ModelError: it is such a one.
    """
    from snugfit.models.folders import CONFIG_PREFIX

    problem = "no weights are read" if name.startswith(CONFIG_PREFIX) else "".join(loaded.messages[:1])
    if problem:
        raise ModelError("model", f"{name} was not trained for this task: {problem}", "Name one that was.")
    model: nn.Module = loaded.model
    return model


def source_files(recipe: TaskRecipe) -> dict[str, dict[str, str]]:
    """Return digests of the files of the recipe's model, and of models in folders that its techniques name, such as a teacher."""
    from snugfit.models.folders import model_files
    from snugfit.models.hub import resolve

    from_scratch, name, local = resolve(recipe.model, recipe.from_scratch, recipe.folder)
    digests = {"model_files": model_files(name, local, weights=not from_scratch)}
    for text in _texts_in(recipe.as_dict()["techniques"]):
        path = recipe.folder / Path(text).expanduser()
        if (path / "config.json").is_file():
            digests[f"files of {path.name}"] = model_files(text, path)
    return digests


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each)
