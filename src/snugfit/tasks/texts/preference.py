"""Preferences: the better of two answers, or answers that are called good or bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.answers import of_preferences
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
    from snugfit.kit.losses.preference_losses import PreferenceLoss
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.step.build import Material
    from snugfit.tasks.task_recipe import TaskRecipe

_OWN = ("completion", "answers", "label", "template", "too_long")
"""Settings of `data` that it reads besides those of all texts."""

_PROMPTS = ("prompt", "question", "instruction", "query", "input")
_COMPLETIONS = ("completion", "response", "answer", "output")


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.preferences import PreferenceSettings, load_preferences
    from snugfit.step.metrics.answer_scores import AnswerScores

    loss = _loss(recipe)
    _check_stream(recipe, loss)
    tokenizer = tokenizer_of(recipe)
    own = {name: getattr(recipe.data, name) for name in _OWN}
    settings = PreferenceSettings(pairs=loss.pairs, **own, **row_settings(recipe))
    if (stream := stream_settings(recipe)) is None:
        data = load_preferences(settings, tokenizer, folder=recipe.folder)
    else:
        from snugfit.data.texts.streamed_texts import stream_preferences

        data = stream_preferences(settings, stream, tokenizer, folder=recipe.folder)
    task = language_model(recipe, tokenizer, data, empty, keep, loss)
    if (generation := getattr(task.material.model, "generation_config", None)) is not None:
        generation.eos_token_id = list(data.stops) or None  # so that others who load it stop there
    answer = recipe.data.answers[0] if loss.pairs else recipe.data.completion
    return replace(
        task,
        material=replace(task.material, forward=AnswerScores(loss)),
        meta={
            **task.meta,
            "conversations": data.report.form,
            "completion_column": answer,
            "too_long": settings.too_long,
        },
    )


def _assume(recipe: TaskRecipe, material: Material) -> Material:
    """Return the material of a plan: rows of two sequences, each as long as a text may be."""
    from snugfit.data.assumed import assumed_pairs
    from snugfit.data.texts.preferences import PadPairs
    from snugfit.step.metrics.answer_scores import AnswerScores

    loss = _loss(recipe)
    _check_stream(recipe, loss)
    data = assumed_pairs(
        recipe.data.max_length, recipe.train.examples_of(recipe.data.max_length), labelled=not loss.pairs
    )
    held_out = None if material.validation is None else data
    return replace(
        material,
        train=data,
        validation=held_out,
        loss=loss,
        collate=PadPairs(0),
        forward=AnswerScores(loss),
    )


def _check_stream(recipe: TaskRecipe, loss: PreferenceLoss) -> None:
    """Refuse a stream where the recipe says already that no adapters can be switched off to have the first model.

    Raises:
        SettingError: the loss compares with it.
    """
    from snugfit.core.technique import Stage
    from snugfit.step.start_scores import not_of_streams

    adapters = [each for each in recipe.all_techniques() if Stage.ADAPT in each.card.stages]
    learned = any(getattr(each, "start", None) is not None for each in adapters)
    if recipe.data.stream is not None and loss.pairs and loss.compares_start and (learned or not adapters):
        raise not_of_streams()


def _loss(recipe: TaskRecipe) -> PreferenceLoss:
    """Return the recipe's loss with its settings.

    Raises:
        SettingError: a setting is given that it does not have, or a loss of one's own cannot be imported.
    """
    from dataclasses import fields

    from snugfit.errors import SettingError
    from snugfit.kit.losses.preference_losses import PREFERENCE_LOSSES, OwnLoss
    from snugfit.system.user_objects import load_object

    own = PREFERENCE_LOSSES.get(recipe.loss)
    if own is None:
        own = OwnLoss(function=load_object(recipe.loss, setting="loss", folder=recipe.folder))
    taken = {field.name for field in fields(own)}
    section = type(recipe.preference)
    for name, each in section.settings().items():
        value = getattr(recipe.preference, name)
        if name not in taken and value != each.default:
            raise SettingError(
                f"preference.{name}", f"is {value}, and {recipe.loss} has no such setting", "Remove it."
            )
    return replace(
        own, **{name: getattr(recipe.preference, name) for name in section.settings() if name in taken}
    )


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.sources import read_table
    from snugfit.data.texts.conversations import prompt_columns
    from snugfit.data.texts.preferences import labelled_of, pair_of
    from snugfit.data.usable_rows import part_of_contents

    data, pairs = recipe.data, _loss(recipe).pairs
    table = read_table(data.rows, setting="data.train", folder=recipe.folder)
    prompt = prompt_columns(table.columns, data.text)

    def answered(row: Mapping[str, Any]) -> Any:
        if pairs:
            return pair_of(row, prompt, data.answers)
        return labelled_of(row, prompt, data.completion, data.label)

    columns = data.answers if pairs else (data.completion, data.label)
    return part_of_contents(table, [*(each for each in prompt if each in table.columns), *columns], answered)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    answers = columns_of(data.get("answers", ("chosen", "rejected")))
    prompts = columns_of(data["text"]) if "text" in data else (source.named(_PROMPTS) or "",)
    if {*answers} <= {*source.columns}:
        return _pairs(source, answers, prompts)
    completion = data.get("completion") or source.named(_COMPLETIONS)
    label = data.get("label", "label")
    labels = source.values(label) if label in source.columns else []
    if (
        completion is None
        or not all(prompts)
        or not labels
        or not all(isinstance(each, bool) for each in labels)
    ):
        return None
    return Recognition(
        data={
            "text": prompts,
            "completion": completion,
            **length_of_conversations(
                [
                    characters_written(row, prompts) + characters_written(row, (completion,))
                    for row in source.rows
                ]
            ),
        },
        settings={"loss": "kto"},
        reason=f"{counted(len(source.rows), 'row')} with a prompt ({', '.join(prompts)}), its answer ({completion}) and whether it is good ({label})",
        score=0.97,
        examples=len(source.rows),
        comments={"data.text": "the prompt", "loss": "the answers come one by one, each good or bad"},
    )


def _pairs(source: Rows, answers: tuple[str, ...], prompts: tuple[str, ...]) -> Recognition:
    there = tuple(each for each in prompts if each)
    lengths = [
        characters_written(row, there) + max(characters_written(row, [column]) for column in answers)
        for row in source.rows
    ]
    prompt = f"a prompt ({', '.join(there)}), " if there else ""
    return Recognition(
        data={
            **({"text": there} if there else {}),
            "answers": answers,
            **length_of_conversations(lengths),
        },
        reason=f"{counted(len(source.rows), 'row')} with {prompt}a better answer ({answers[0]}) and a worse one ({answers[-1]})",
        score=0.98,
        examples=len(source.rows),
        comments={"data.text": "the prompt", "data.answers": "the better answer, and the worse one"},
    )


CARD = Card(
    name="preference",
    summary="Prefer the better of two answers (dpo, ipo, orpo), or good answers to bad ones (kto).",
    loss="dpo",
    loss_from_scratch="orpo",
    losses=("dpo", "ipo", "orpo", "kto"),
    section="preference",
    metrics=("reward_accuracy", "reward_margin", "reward_chosen", "reward_rejected"),
    settings=(*ROWS, STREAM, ADD_TOKENS, *_OWN),
    load=_load,
    load_empty=load_empty_language_model,
    assume=_assume,
    inference=of_preferences,
    model="decoder",
    recognize=_recognize,
    read_rows=_read_rows,
    plain_rows=True,
    pipeline="text-generation",
)
