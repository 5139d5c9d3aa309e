"""Answers to prompts: the tokens of the answer alone are scored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.tasks.card import Card
from snugfit.tasks.task import Task
from snugfit.tasks.texts import ROWS, language_model, load_empty_language_model, row_settings

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.instruct import InstructSettings, load_instruct
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    settings = InstructSettings(completion=recipe.data.completion, **row_settings(recipe))
    data = load_instruct(settings, tokenizer, folder=recipe.folder)
    return language_model(recipe, tokenizer, data, empty, keep)


CARD = Card(
    name="instruction",
    summary="Answer a prompt; the answer alone is scored.",
    loss="causal_lm",
    metrics=("perplexity",),
    settings=(*ROWS, "completion"),
    load=_load,
    load_empty=load_empty_language_model,
)
