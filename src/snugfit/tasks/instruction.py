"""Answers to prompts: the tokens of the answer alone are scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of, length_of_rows
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.tasks.texts import ROWS, language_model, load_empty_language_model, row_settings

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe

_PROMPTS = ("prompt", "instruction", "question", "query", "problem", "input", "source")
_CONTEXTS = ("input", "context", "passage")
_COMPLETIONS = ("completion", "response", "output", "answer", "solution", "target")


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.instruct import InstructSettings, load_instruct
    from snugfit.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    settings = InstructSettings(completion=recipe.data.completion, **row_settings(recipe))
    data = load_instruct(settings, tokenizer, folder=recipe.folder)
    return language_model(recipe, tokenizer, data, empty, keep)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    completion = data.get("completion") or source.named(_COMPLETIONS)
    prompts = columns_of(data.get("text") or _prompts(source))
    if completion is None or not all(map(source.is_text, (completion, *prompts))) or not prompts:
        return None
    columns = (*prompts, completion)
    return Recognition(
        data={
            "text": prompts,
            "completion": completion,
            "max_length": length_of_rows(source.characters(columns)),
        },
        reason=f"{len(source.rows):,} rows with a prompt ({', '.join(prompts)}) and its answer ({completion})",
        score=0.9,
        examples=len(source.rows),
        comments={"data.text": "the prompt"},
    )


def _prompts(rows: Rows) -> tuple[str, ...]:
    """Return the columns of the prompt: what is asked, and what it is asked about."""
    prompt, context = rows.named(_PROMPTS), rows.named(_CONTEXTS)
    if prompt is None:
        return ()
    more = context is not None and context != prompt and rows.values(context)
    return (prompt, str(context)) if more else (prompt,)


CARD = Card(
    name="instruction",
    summary="Answer a prompt; the answer alone is scored.",
    loss="causal_lm",
    metrics=("perplexity",),
    settings=(*ROWS, "completion"),
    load=_load,
    load_empty=load_empty_language_model,
    decoder=True,
    recognize=_recognize,
)
