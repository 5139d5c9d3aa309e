"""The base of tasks on text: settings of their rows, material, language models, and the files that a model is read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError
from snugfit.tasks.task import Task, loss_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.core.losses import Loss
    from snugfit.data.causal import CausalData
    from snugfit.data.instruct import InstructData
    from snugfit.data.preferences import PreferenceData
    from snugfit.data.tagged_texts import TagData
    from snugfit.data.text import TextData
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.recipe import Recipe
    from snugfit.step.build import Material
    from snugfit.step.metrics import RowMetric

ROWS = ("text", "max_length", "bad_rows")
"""Settings of `data` that each of them reads."""


def language_model(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    data: CausalData | InstructData | PreferenceData,
    empty: bool,
    keep: KeepPart | None,
    loss: str | Loss | None = None,
) -> Task:
    """Return a causal language model with its data, loaded as the recipe says.

    Args:
        loss: in place of the recipe's own.
    """
    from snugfit.data.marked_example import marked_parts
    from snugfit.models.huggingface import load_causal_lm
    from snugfit.models.tokenizer import check_length

    loaded = load_causal_lm(
        recipe.model,
        tokenizer=tokenizer,
        seed=recipe.train.seed,
        from_scratch=recipe.from_scratch,
        folder=recipe.folder,
        techniques=recipe.all_techniques(),
        empty=empty,
        keep=keep,
    )
    check_length(loaded.model, recipe.data.max_length)

    def load(name: str) -> LoadedModel:
        return load_causal_lm(name, tokenizer=tokenizer, folder=recipe.folder, empty=empty)

    return Task(
        material_of(recipe, loaded, data, load, loss),
        meta={
            "task": recipe.task,
            "conversations": data.report.form or None,
            "text_columns": list(recipe.data.text),
            "completion_column": recipe.data.completion,
            "max_length": recipe.data.max_length,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        example=marked_parts(data.train[0], tokenizer),
        fingerprints=data.fingerprints,
        sources=source_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
    )


def load_empty_language_model(recipe: Recipe, name: str) -> nn.Module:
    """Return the language model of that name without weights."""
    from snugfit.models.huggingface import load_causal_lm

    model: nn.Module = load_causal_lm(name, folder=recipe.folder, empty=True).model
    return model


def material_of(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TextData | CausalData | InstructData | PreferenceData | TagData,
    load: Callable[[str], LoadedModel],
    loss: str | Loss | None = None,
    metrics: Mapping[str, RowMetric] | None = None,
) -> Material:
    """Return a text model with its data; `load` gets another model for the same task by its name, `metrics` are the task's own."""
    from snugfit.step.build import Material

    return Material(
        loaded.model,
        data.train,
        data.validation or None,
        loss_of(recipe) if loss is None else loss,
        data.collate,
        load=lambda name: trained_already(load(name), name),
        metrics=metrics or {},
    )


def trained_already(loaded: LoadedModel, name: str) -> nn.Module:
    """Return a model that another one learns from; one of which something had to be drawn anew has nothing to teach.

    Raises:
        ModelError: it is such a one.
    """
    if loaded.messages:
        raise ModelError(
            "model", f"{name} was not trained for this task: {loaded.messages[0]}", "Name one that was."
        )
    model: nn.Module = loaded.model
    return model


def source_files(recipe: Recipe) -> dict[str, dict[str, str]]:
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


def row_settings(recipe: Recipe) -> dict[str, Any]:
    """Return what all tasks on text ask of their rows."""
    return {
        "train": recipe.data.train,
        "text": tuple(recipe.data.text),
        "validation": recipe.data.validation,
        "max_length": recipe.data.max_length,
        "bad_rows": recipe.data.bad_rows,
        "seed": recipe.train.seed,
    }
