"""Classes of texts, learned from rows with a label each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.tasks.card import Card
from snugfit.tasks.task import Task
from snugfit.tasks.texts import ROWS, material_of, row_settings, source_files

if TYPE_CHECKING:
    from torch import nn

    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.recipe import Recipe


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.text import TextSettings, load_text
    from snugfit.models.huggingface import load_text_classifier
    from snugfit.models.tokenizer import check_length, load_tokenizer

    settings = TextSettings(label=recipe.data.label, **row_settings(recipe))
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

    def load_other(name: str) -> LoadedModel:
        return load_text_classifier(name, data.labels, tokenizer=tokenizer, folder=recipe.folder, empty=empty)

    return Task(
        material_of(recipe, loaded, data, load_other),
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
        sources=source_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
        example_rows=data.example_rows,
    )


def _load_empty(recipe: Recipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import load_text_classifier

    model: nn.Module = load_text_classifier(name, ("0", "1"), folder=recipe.folder, empty=True).model
    return model


CARD = Card(
    name="text-classification",
    summary="Tell which class a text is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=(*ROWS, "label"),
    load=_load,
    load_empty=_load_empty,
    classes=True,
    predicts=True,
)
