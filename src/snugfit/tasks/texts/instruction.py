"""Answers in conversations: their tokens alone are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.answers import of_conversations
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
    AROUND_A_TURN,
    Recognition,
    Rows,
    Script,
    characters_written,
    columns_of,
    length_of_conversations,
)
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_OWN = ("completion", "format", "scored", "template", "too_long")
"""Settings of `data` that no other task reads."""

_PROMPTS = ("prompt", "instruction", "question", "query", "problem", "input", "source")
_CONTEXTS = ("input", "context", "passage")
_COMPLETIONS = ("completion", "response", "output", "answer", "solution", "target")


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.instruct import InstructSettings, load_instruct

    tokenizer = tokenizer_of(recipe)
    own = {name: getattr(recipe.data, name) for name in _OWN}
    settings = InstructSettings(**own, **row_settings(recipe))
    if (stream := stream_settings(recipe)) is None:
        data = load_instruct(settings, tokenizer, folder=recipe.folder)
    else:
        from snugfit.data.texts.streamed_texts import stream_instruct

        data = stream_instruct(settings, stream, tokenizer, folder=recipe.folder)
    task = language_model(recipe, tokenizer, data, empty, keep)
    if (generation := getattr(task.material.model, "generation_config", None)) is not None:
        generation.eos_token_id = list(data.stops) or None  # so that others who load it stop there
    scored = {"conversations": data.form, "scored": settings.scored, "too_long": settings.too_long}
    return replace(task, meta={**task.meta, **scored}, asked=data.asked)


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.sources import check_columns, read_table
    from snugfit.data.texts.conversations import (
        OPTIONAL,
        PAIRS,
        columns_of_form,
        conversation_of,
        hint_of_form,
        lists_turns,
        prompt_columns,
        recognise,
    )
    from snugfit.data.usable_rows import part_of_contents, part_of_table

    data = recipe.data
    table = read_table(data.rows, setting="data.train", folder=recipe.folder)
    form = data.format or recognise(table.columns, data.text, data.completion)
    prompt = prompt_columns(table.columns, data.text)
    if form == PAIRS and not (table.rows and lists_turns(table.rows[0].get(prompt[0]))):
        return part_of_table(table, prompt, None, None)
    by_setting = columns_of_form(form, prompt, data.completion)
    check_columns(table, by_setting, hint_of_form(table.rows))
    needed = [column for columns in by_setting.values() for column in columns]

    def messages(row: Mapping[str, Any]) -> Any:
        columns: dict[str, Any] = {"text": data.text, "completion": data.completion}
        return conversation_of(row, form, scored=data.scored, **columns).messages

    return part_of_contents(table, [*needed, *(each for each in OPTIONAL if each in table.columns)], messages)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    chats = _recognize_chats(source, data)
    if chats is not None:
        return chats
    completion = data.get("completion") or source.named(_COMPLETIONS)
    prompts = columns_of(data.get("text") or _prompts(source))
    if completion is None or not prompts:
        return None
    columns = (*prompts, completion)
    if all(map(source.is_text, prompts)) and (
        source.is_text(completion) or _answers_in_numbers(source, prompts, completion)
    ):
        lengths = source.characters(columns)
    elif all(source.is_text(each) or _lists_messages(source, each) for each in columns):
        lengths = [characters_written(row, columns) for row in source.rows]
    else:
        return None
    return Recognition(
        data={
            "text": prompts,
            "completion": completion,
            **length_of_conversations(lengths),
        },
        reason=f"{counted(len(source.rows), 'row')} with a prompt ({', '.join(prompts)}) and its answer ({completion})",
        score=0.9,
        examples=len(source.rows),
        comments={"data.text": "the prompt"},
    )


def _answers_in_numbers(rows: Rows, prompts: Sequence[str], completion: str) -> bool:
    """Return whether answers that are numbers are told to be answers by the names of both columns, which a table of numbers has not."""
    named = prompts[0].casefold() == "prompt" and completion.casefold() in ("completion", "response")
    return named and all(isinstance(value, str) for value in rows.values(completion))


def _lists_messages(rows: Rows, column: str) -> bool:
    from snugfit.data.texts.conversations import lists_turns

    return lists_turns(next(iter(rows.values(column)), None))


def _recognize_chats(rows: Rows, data: Mapping[str, Any]) -> Recognition | None:
    from snugfit.data.texts.conversations import COLUMNS, lists_turns, texts_in

    chats = (form for form, column in COLUMNS.items() if column in rows.columns)
    form = data.get("format") or next(chats, None)
    first = None if form not in COLUMNS else next(iter(rows.values(COLUMNS[form])), None)
    if form is None or not lists_turns(first):
        return None
    lengths = [sum(len(text) + AROUND_A_TURN for text in texts_in(row, form)) for row in rows.rows]
    return Recognition(
        data={"format": form, **length_of_conversations(lengths)},
        reason=f"{len(rows.rows):,} conversations in column '{COLUMNS[form]}'",
        score=0.95,
        examples=len(rows.rows),
        comments={
            "data.format": f"lists of messages in column '{COLUMNS[form]}'; each answer is learned, see data.scored"
        },
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
    summary="Answer in a conversation, or a single prompt; the answers alone are scored.",
    loss="causal_lm",
    metrics=("perplexity",),
    settings=(*ROWS, STREAM, ADD_TOKENS, *_OWN),
    load=_load,
    load_empty=load_empty_language_model,
    inference=of_conversations,
    model="decoder",
    recognize=_recognize,
    read_rows=_read_rows,
    plain_rows=True,
    pipeline="text-generation",
)
