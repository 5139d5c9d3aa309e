"""Next tokens of texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.tasks.card import Card
from snugfit.tasks.task import Task
from snugfit.tasks.texts import ROWS, language_model, load_empty_language_model, row_settings

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.causal import CausalSettings, load_causal
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_causal(CausalSettings(**row_settings(recipe)), tokenizer, folder=recipe.folder)
    return language_model(recipe, tokenizer, data, empty, keep)


CARD = Card(
    name="causal-lm",
    summary="Predict the next token of a text.",
    loss="causal_lm",
    metrics=("perplexity",),
    settings=ROWS,
    load=_load,
    load_empty=load_empty_language_model,
)
