"""Next tokens of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.answers import of_texts
from snugfit.tasks.common.texts import (
    ADD_TOKENS,
    ROWS,
    STREAM,
    language_model,
    load_empty_language_model,
    row_settings,
    stream_settings,
    tokenizer_of,
)
from snugfit.tasks.recognition import (
    PLAIN_TEXT,
    Recognition,
    Rows,
    Script,
    blocks_of,
    columns_of,
    length_of_stream,
    of_plain_text,
)
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_SAMPLE = """\
A bird in the hand is worth two in the bush. Actions speak louder than words. All that glitters is not gold.
A stitch in time saves nine. Better late than never. Birds of a feather flock together. Practice makes perfect.
Do not count your chickens before they hatch. Every cloud has a silver lining. Fortune favours the bold.
Good things come to those who wait. Haste makes waste. Honesty is the best policy. Hope for the best.
If it is not broken, do not fix it. Knowledge is power. Look before you leap. Many hands make light work.
No man is an island. Out of sight, out of mind. Rome was not built in a day. Slow and steady wins the race.
The early bird catches the worm. The pen is mightier than the sword. There is no place like home.
Time and tide wait for no man. Two heads are better than one. When in Rome, do as the Romans do.
Where there is smoke, there is fire. You cannot judge a book by its cover. A watched pot never boils.
An apple a day keeps the doctor away. Beggars cannot be choosers. Curiosity killed the cat.
"""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.causal import CausalSettings, load_causal

    tokenizer = tokenizer_of(recipe)
    documents, separator = recipe.data.documents, recipe.data.document_separator
    settings = CausalSettings(documents=documents, separator=separator, **row_settings(recipe))
    if (stream := stream_settings(recipe)) is None:
        data = load_causal(settings, tokenizer, folder=recipe.folder)
    else:
        from snugfit.data.texts.streamed_texts import stream_causal

        data = stream_causal(settings, stream, tokenizer, folder=recipe.folder)
    task = language_model(recipe, tokenizer, data, empty, keep)
    return replace(task, meta={**task.meta, "documents": documents, "document_separator": separator})


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    if (plain := of_plain_text(source, 1.0)) is not None:
        return plain
    columns = columns_of(data.get("text") or [column for column in source.columns if source.is_prose(column)])
    if not columns:
        return None
    size = sum(source.characters(columns))
    return Recognition(
        data={"text": columns, "max_length": length_of_stream(size)},
        reason=f"{counted(len(source.rows), 'row')}, {counted(size, 'character')} of text",
        score=0.3,
        examples=blocks_of(size),
    )


CARD = Card(
    name="causal-lm",
    summary="Predict the next token of a text.",
    loss="causal_lm",
    metrics=("perplexity",),
    settings=(*ROWS, STREAM, ADD_TOKENS, "documents", "document_separator"),
    load=_load,
    load_empty=load_empty_language_model,
    inference=of_texts,
    model="decoder",
    recognize=_recognize,
    sample=(PLAIN_TEXT, _SAMPLE),
    plain_rows=True,
    pipeline="text-generation",
)
