"""What each task trains: from a recipe to a model, data and a loss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset

from snugfit.core.losses import LOSSES, Loss
from snugfit.errors import DataError, ModelError
from snugfit.kit.sharded_loading import KeepPart
from snugfit.models.bundle import save_bundle
from snugfit.step.build import Material, hold_out
from snugfit.system.user_objects import is_python_path, load_object

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.data.causal import CausalData
    from snugfit.data.instruct import InstructData
    from snugfit.data.text import TextData
    from snugfit.models.huggingface import LoadedModel
    from snugfit.recipe import Recipe

Sides = tuple[Sequence[int], Sequence[int]]
"""Places of the rows to train on, and of those to validate on."""


@dataclass(frozen=True)
class Task:
    """Material of a run, and what its folder has to remember of it.

    `meta` goes into the bundle with the best model; `data` is the summary that a run's events carry; `sources` are digests of the
    files that the model, its tokenizer and other models it learns from are read from.
    """

    material: Material
    meta: Mapping[str, Any]
    data: Mapping[str, Any]
    fingerprints: Mapping[str, str]
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    tokenizer: Any = None
    example_rows: list[dict[str, Any]] = field(default_factory=list)

    def save_best(
        self, folder: Path, model: nn.Module, description: Mapping[str, Any], *, trained: nn.Module
    ) -> None:
        """Write the model as it is now, with what is needed to use it."""
        save_bundle(folder, model, {**self.meta, **description}, self.tokenizer, adapters_of=trained)


def prepare(recipe: Recipe, *, empty: bool = False, keep: KeepPart | None = None) -> Task:
    """Load and check the recipe's data, then its model.

    Args:
        empty: the model without weights, on the meta device.
        keep: what to keep of each weight that is read from a file, as `core.parts` says.
    Raises:
        DataError, ModelError, SettingError: what cannot be used.
    """
    return _TASKS[recipe.task](recipe, empty, keep)


def prepare_sides(recipe: Recipe, sides: Sides) -> Task:
    """Return what a recipe trains of its own Python data, with one part of the rows to train on and another to validate on."""
    training, validation = sides
    task = prepare(replace(recipe, data=replace(recipe.data, validation=None)))
    whole = task.material.train
    material = replace(task.material, train=Subset(whole, training), validation=Subset(whole, validation))
    digest = hashlib.sha256(json.dumps([list(training), list(validation)]).encode()).hexdigest()
    return replace(
        task,
        material=material,
        data={"train": len(training), "validation": len(validation)},
        fingerprints={"rows of the fold": digest},
    )


def python_data(recipe: Recipe) -> Any:
    """Return all rows of a Python recipe's `data.train`.

    Raises:
        DataError, SettingError: they cannot be had.
    """
    return _python_data(recipe, "data.train", recipe.data.train)


def lacking(recipe: Recipe) -> str | None:
    """Return what a plan has to do without, in words: the file of training rows, or the tokenizer; None where both are there."""
    from snugfit.models.folders import has_tokenizer
    from snugfit.models.hub import resolve

    if recipe.task == "python":
        return None
    name = recipe.data.train
    path = Path(name).expanduser()
    if not is_python_path(name) and not (recipe.folder / path).exists():
        return f"data.train ({path.name}) is not there"
    _, _, local = resolve(recipe.model, recipe.from_scratch, recipe.folder)
    if local is not None and not has_tokenizer(local):
        return f"model ({local.name}) has no tokenizer"
    return None


def prepare_assumed(recipe: Recipe) -> Task:
    """Return the model without weights, and examples of `data.max_length` tokens in place of the recipe's own: for a plan alone.

    Raises:
        ModelError, SettingError: what cannot be used.
    """
    from snugfit.data.assumed import assumed_text, collate_alike
    from snugfit.models.huggingface import load_causal_lm, load_text_classifier
    from snugfit.models.tokenizer import check_length

    classes = recipe.task == "text-classification"

    def load(name: str) -> nn.Module:
        if classes:
            loaded = load_text_classifier(name, ("0", "1"), folder=recipe.folder, empty=True)
        else:
            loaded = load_causal_lm(name, folder=recipe.folder, empty=True)
        model: nn.Module = loaded.model
        return model

    model: Any = load(recipe.model)
    if (
        model.config.pad_token_id is None
    ):  # the tokenizer's, by which a classifier on a decoder finds the last token
        model.config.pad_token_id = 0
    check_length(model, recipe.data.max_length)
    data = assumed_text(recipe.data.max_length, recipe.train.global_batch, classes=classes)
    held_out = None if recipe.data.validation is None else data
    material = Material(model, data, held_out, _loss(recipe), collate_alike, load=load)
    return Task(material, meta={}, data={}, fingerprints={})


def _text_classification(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.text import TextSettings, load_text
    from snugfit.models.huggingface import load_text_classifier
    from snugfit.models.tokenizer import check_length, load_tokenizer

    settings = TextSettings(label=recipe.data.label, **_row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_text(settings, tokenizer, folder=recipe.folder)
    loaded = load_text_classifier(
        recipe.model,
        data.labels,
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
        return load_text_classifier(name, data.labels, tokenizer=tokenizer, folder=recipe.folder, empty=empty)

    return Task(
        _of_texts(recipe, loaded, data, load),
        meta={
            "task": recipe.task,
            "labels": list(data.labels),
            "text_columns": list(recipe.data.text),
            "label_column": recipe.data.label,
            "max_length": recipe.data.max_length,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        fingerprints=data.fingerprints,
        sources=_model_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
        example_rows=data.example_rows,
    )


def _causal_lm(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.causal import CausalSettings, load_causal
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_causal(CausalSettings(**_row_settings(recipe)), tokenizer, folder=recipe.folder)
    return _language_model(recipe, tokenizer, data, empty, keep)


def _instruction(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.instruct import InstructSettings, load_instruct
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    settings = InstructSettings(completion=recipe.data.completion, **_row_settings(recipe))
    data = load_instruct(settings, tokenizer, folder=recipe.folder)
    return _language_model(recipe, tokenizer, data, empty, keep)


def _language_model(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerBase,
    data: CausalData | InstructData,
    empty: bool,
    keep: KeepPart | None,
) -> Task:
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
        _of_texts(recipe, loaded, data, load),
        meta={
            "task": recipe.task,
            "max_length": recipe.data.max_length,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        fingerprints=data.fingerprints,
        sources=_model_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
    )


def _of_texts(
    recipe: Recipe,
    loaded: LoadedModel,
    data: TextData | CausalData | InstructData,
    load: Callable[[str], LoadedModel],
) -> Material:
    return Material(
        loaded.model,
        data.train,
        data.validation or None,
        _loss(recipe),
        data.collate,
        load=lambda name: _trained_already(load(name), name),
    )


def _trained_already(loaded: LoadedModel, name: str) -> nn.Module:
    """Return a model that another one learns from; one of which something had to be drawn anew has nothing to teach.

    Raises:
        ModelError: it is such a one.
    """
    if loaded.messages:
        raise ModelError(f"model: {name} was not trained for this task: {loaded.messages[0]}.")
    model: nn.Module = loaded.model
    return model


def _model_files(recipe: Recipe) -> dict[str, dict[str, str]]:
    """Return digests of the files of the recipe's model, and of models in folders that its techniques name, such as a teacher."""
    from snugfit.models.folders import model_files
    from snugfit.models.hub import resolve

    from_scratch, name, local = resolve(recipe.model, recipe.from_scratch, recipe.folder)
    found = {"model_files": model_files(name, local, weights=not from_scratch)}
    for text in _texts_in(recipe.as_dict()["techniques"]):
        path = recipe.folder / Path(text).expanduser()
        if (path / "config.json").is_file():
            found[f"files of {path.name}"] = model_files(text, path)
    return found


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(each)


def _row_settings(recipe: Recipe) -> dict[str, Any]:
    """Return what all tasks on text ask of their rows."""
    return {
        "train": recipe.data.train,
        "text": tuple(recipe.data.text),
        "validation": recipe.data.validation,
        "max_length": recipe.data.max_length,
        "bad_rows": recipe.data.bad_rows,
        "seed": recipe.train.seed,
    }


def _python(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    """Prepare functions of the user's own: a model that a function makes is whole, so that there is no part of it to keep."""
    from snugfit.models.python import load_python_model

    train = _python_data(recipe, "data.train", recipe.data.train)
    validation = recipe.data.validation
    held_out = None
    if isinstance(validation, str):
        held_out = _python_data(recipe, "data.validation", validation)
    elif validation:
        train, held_out = hold_out(train, validation, recipe.train.seed)
    model = load_python_model(recipe.model, folder=recipe.folder, seed=recipe.train.seed, empty=empty)
    collate = recipe.data.collate
    return Task(
        Material(
            model,
            train,
            held_out,
            _loss(recipe),
            None if collate is None else load_object(collate, setting="data.collate", folder=recipe.folder),
        ),
        meta={"task": recipe.task, "model": recipe.model, "numerics": recipe.as_dict()["plan"]["numerics"]},
        data={"train": len(train), "validation": 0 if held_out is None else len(held_out)},
        fingerprints={},
    )


def _python_data(recipe: Recipe, setting: str, spec: str) -> Any:
    function = load_object(spec, setting=setting, folder=recipe.folder)
    dataset = function() if callable(function) else function
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{setting}: '{spec}' returned {type(dataset).__name__}. Return a data set with a length and an index: a "
            "list, or a torch.utils.data.Dataset."
        )
    return dataset


def _loss(recipe: Recipe) -> str | Loss:
    if recipe.loss in LOSSES:
        return recipe.loss
    found: Loss = load_object(recipe.loss, setting="loss", folder=recipe.folder)
    return found


_TASKS: Mapping[str, Callable[[Recipe, bool, KeepPart | None], Task]] = {
    "text-classification": _text_classification,
    "causal-lm": _causal_lm,
    "instruction": _instruction,
    "python": _python,
}
