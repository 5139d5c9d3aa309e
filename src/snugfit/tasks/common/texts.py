"""The base of tasks on text: settings of their rows, material and language models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.tasks.inference import Inference, Prediction, Row, decoder_of
from snugfit.tasks.recipe_model import load_from, source_files, trained_already
from snugfit.tasks.recognition import Rows, columns_of, length_of_rows
from snugfit.tasks.task import Task, loss_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.core.loss_terms import Loss
    from snugfit.data.files.file_rows import FileRows
    from snugfit.data.labels.label_sets import LabelSets
    from snugfit.data.report import DataReport
    from snugfit.data.texts.causal import CausalData
    from snugfit.data.texts.instruct import InstructData
    from snugfit.data.texts.labelled_texts import TextData
    from snugfit.data.texts.masked import MaskedData
    from snugfit.data.texts.preferences import PreferenceData
    from snugfit.data.texts.streamed_texts import StreamSettings
    from snugfit.data.texts.tagged_texts import TagData
    from snugfit.data.texts.text_pairs import PairData
    from snugfit.data.texts.text_to_text import TextToTextData
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.step.build import Material
    from snugfit.step.metrics.metric import RowMetric
    from snugfit.tasks.task_recipe import TaskRecipe

    LoadedTexts = (
        TextData
        | CausalData
        | InstructData
        | PreferenceData
        | TagData
        | PairData
        | TextToTextData
        | MaskedData
    )

ROWS = ("text", "max_length", "bad_rows", "stopping_strategy")
"""Settings of `data` that each of them reads."""

STREAM = "stream"
"""The setting of `data` of those that read rows as a stream."""

ADD_TOKENS = "add_tokens"
"""The setting of `data` of those whose tokenizer may get tokens."""

_TEXTS = (
    "text",
    "sentence",
    "title",
    "subject",
    "body",
    "content",
    "message",
    "review",
    "comment",
    "description",
)
_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),
    ("sentence_1", "sentence_2"),
    ("question1", "question2"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("query", "passage"),
    ("query", "document"),
    ("question", "sentence"),
)
"""Names of columns whose texts are read as a pair."""


def labelled_text_task(
    recipe: TaskRecipe,
    empty: bool,
    keep: KeepPart | None,
    *,
    classes: bool,
    sets: LabelSets | None = None,
    meta: Mapping[str, Any] | None = None,
    metrics: Mapping[str, RowMetric] | None = None,
) -> Task:
    """Return a model that tells a class, labels or a number of each text, or of each pair of texts, with its rows.

    Args:
        classes: whether the label is a class, or else a number: the model tells that in units of its spread over the rows to train
            on, from their mean.
        sets: the place of the labels, where a row has any number of them.
        meta: what the task keeps with its model besides.
        metrics: those that the task makes.
    """
    from snugfit.data.texts.labelled_texts import TextSettings, load_text
    from snugfit.kit.losses.rescaled import Rescaled, RescaledError
    from snugfit.models.huggingface import ANY_LABELS, load_classifier
    from snugfit.models.tokenizer import check_length, load_tokenizer

    label = recipe.data.label if sets is None else sets
    settings = TextSettings(label=label, pair=recipe.data.pair, classes=classes, **row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_text(settings, tokenizer, folder=recipe.folder)
    load = partial(
        load_classifier,
        labels=data.labels if classes else (recipe.data.label,),
        problem=None if sets is None else ANY_LABELS,
        tokenizer=tokenizer,
        folder=recipe.folder,
        empty=empty,
    )
    loaded = load_from(recipe, load, keep)
    check_length(loaded.model, recipe.data.max_length)
    material = material_of(recipe, loaded, data, load, metrics=metrics)
    scale: dict[str, Any] = {}
    if not classes:
        scale = {"middle": data.middle, "spread": data.spread}
        loss = RescaledError(data.spread) if recipe.loss == "mse" else material.loss
        material = replace(material, forward=Rescaled(**scale), loss=loss)
    whole = {
        "labels": list(data.labels),
        **scale,
        **(meta or {}),
        "pair_column": recipe.data.pair,
        "label_column": recipe.data.label,
    }
    return task_of_texts(
        recipe,
        material,
        loaded,
        data,
        tokenizer,
        meta=whole,
        example_rows=data.example_rows,
        classes=data.labels if classes else (),
    )


def labelled_text_inference(
    meta: Mapping[str, Any],
    tokenizer: Any,
    labels: Sequence[str] | None,
    decode: Callable[[Any, Sequence[Any]], list[Prediction]],
    columns: tuple[str, ...],
    sets: LabelSets | None = None,
) -> Inference:
    """Return the use of such a model, but for what it is scored by.

    Args:
        labels: names of the classes; None where a label is a number.
        sets: the place of the labels, where a row has any number of them.
    """
    from snugfit.data.bad_rows import text_of
    from snugfit.data.texts.labelled_texts import load_text_rows
    from snugfit.data.texts.tokens import encode, padding_for

    pair = meta.get("pair_column")

    def encoded(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        texts = [text_of(row, meta["text_columns"]) for row in rows]
        pairs = [] if pair is None else [text_of(row, [pair]) for row in rows]
        return encode(texts, tokenizer, meta["max_length"], pairs).examples

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_text_rows(
            source,
            tokenizer,
            text=meta["text_columns"],
            pair=pair,
            label=(sets or meta["label_column"]) if labelled else None,
            labels=labels if labelled else (),
            max_length=meta["max_length"],
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    return Inference(
        encode=encoded,
        collate=padding_for(tokenizer),
        decode=decode,
        columns=columns,
        length=lambda example: len(example["input_ids"]),
        read=read,
    )


def text_columns(
    rows: Rows, label: str | Sequence[str], data: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the columns of text beside those of labels, and as `pair` the column of a second text where two are named as the texts of a pair are.

    Columns of text are those with sentences, and those with texts under a usual name.
    """
    if given := data.get("text"):
        return columns_of(given), {"pair": data["pair"]} if data.get("pair") else {}
    labels = columns_of(label)
    for names in _PAIRS:
        pair = [column for name in names if (column := rows.named([name])) and column not in labels]
        if len(pair) == 2 and all(map(rows.is_text, pair)):
            return (pair[0],), {"pair": pair[1]}
    columns = [column for column in rows.columns if column not in labels and rows.is_text(column)]
    usual = {name for name in columns if name.strip().casefold() in _TEXTS}
    return tuple(column for column in columns if column in usual or rows.is_prose(column)), {}


def length_of_texts(rows: Rows, columns: Sequence[str], second: Mapping[str, str]) -> int:
    """Return `max_length` for the texts of these columns."""
    return length_of_rows(rows.characters([*columns, *second.values()]))


def language_model(
    recipe: TaskRecipe,
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
    from snugfit.models.huggingface import load_causal_lm
    from snugfit.models.tokenizer import check_length
    from snugfit.step.metrics.byte_perplexity import PerByte

    load = partial(load_causal_lm, tokenizer=tokenizer, folder=recipe.folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    metrics = None if loss is not None else {"perplexity_per_byte": PerByte(decoder_of(tokenizer))}
    check_length(loaded.model, recipe.data.max_length)
    _check_positions(loaded.model, data.report)
    loaded = replace(loaded, messages=(*loaded.messages, *_frozen_rows(recipe)))
    return task_of_texts(
        recipe,
        material_of(recipe, loaded, data, load, loss, metrics),
        loaded,
        data,
        tokenizer,
        meta={"completion_column": recipe.data.completion},
        example_rows=data.example_rows,
    )


def tokenizer_of(recipe: TaskRecipe) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a recipe's model, with the tokens that it is to get."""
    from snugfit.models.tokenizer import load_tokenizer

    return load_tokenizer(recipe.model, folder=recipe.folder, add=recipe.data.add_tokens or ())


def _frozen_rows(recipe: TaskRecipe) -> tuple[str, ...]:
    """Return what to say of new tokens whose rows of the embeddings do not train."""
    from snugfit.core.technique import Stage

    adapters = [each for each in recipe.all_techniques() if Stage.ADAPT in each.card.stages]
    named = [token for each in adapters for token in getattr(each, "tokens", ())]
    left = [token for token in recipe.data.add_tokens or () if token not in named]
    if not left or not adapters or any(isinstance(token, int) for token in named):
        return ()
    return (
        f"data.add_tokens: beside adapters the rows of {' '.join(left)} stay as they are, unless lora.tokens names them",
    )


def load_empty_language_model(recipe: TaskRecipe, name: str) -> nn.Module:
    """Return the language model of that name without weights."""
    from snugfit.models.huggingface import load_causal_lm

    model: nn.Module = load_causal_lm(name, folder=recipe.folder, empty=True).model
    return model


def _check_positions(model: nn.Module, report: DataReport) -> None:
    """See that no example is longer than what the model's configuration says that it reads.

    Rotary positions are computed, not looked up, so that longer texts would train; nothing answers them or serves them afterwards.

    Raises:
        SettingError: one is, or may be, as those of a stream.
    """
    from snugfit.kit.language_models.generation import factor_for, positions_of

    joined = report.tokens_total if report.unit == "blocks" else report.tokens_max
    longest, positions = min(report.max_length, joined or report.max_length), positions_of(model)
    if longest > positions:
        factor = factor_for(model, longest)
        stretched = (
            f'; one that has learned already is stretched there: "rope_type": "yarn", "factor": {factor} in rope_parameters'
            if factor is not None
            else ""
        )
        raise SettingError(
            "data.max_length",
            f"{report.max_length:,} lets examples have {longest:,} tokens, and this model reads {positions:,} (max_position_embeddings of its configuration)",
            f"Lower it to {positions:,}. To teach the model longer texts, raise max_position_embeddings in its config.json{stretched}.",
        )


def task_of_texts(
    recipe: TaskRecipe,
    material: Material,
    loaded: LoadedModel,
    data: LoadedTexts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    meta: Mapping[str, Any],
    example_rows: Sequence[dict[str, Any]] = (),
    example: list[list[Any]] | None = None,
    classes: Sequence[str] = (),
) -> Task:
    """Return a text model as a task.

    Args:
        meta: what the task keeps with its model beside the settings of its texts.
        classes: the names of those that a text may have.
        example: parts of an example to train on, where its labels are not of its own tokens.
    """
    from snugfit.data.texts.marked_example import marked_parts

    return Task(
        material,
        meta={
            "task": recipe.task,
            **meta,
            "text_columns": list(recipe.data.text),
            "max_length": recipe.data.max_length,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        example=marked_parts(data.train[0], tokenizer, classes) if example is None else example,
        fingerprints=data.fingerprints,
        sources=source_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
        example_rows=list(example_rows),
    )


def material_of(
    recipe: TaskRecipe,
    loaded: LoadedModel,
    data: LoadedTexts,
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


def stream_settings(recipe: TaskRecipe) -> StreamSettings | None:
    """Return how the rows to train on are read as a stream; None where all are read before the run begins.

    Raises:
        SettingError: examples are balanced, which needs all rows.
    """
    if recipe.data.stream is None:
        return None
    from snugfit.data.texts.streamed_texts import StreamSettings

    if recipe.data.balance is not None:
        raise SettingError(
            "data.balance", "counts all rows, and they are read as a stream (data.stream)", "Leave one out."
        )
    return StreamSettings(recipe.data.stream, recipe.train.updates, recipe.train.most_examples)


def row_settings(recipe: TaskRecipe) -> dict[str, Any]:
    """Return what all tasks on text ask of their rows."""
    return {
        "train": recipe.data.rows,
        "text": tuple(recipe.data.text),
        "validation": recipe.data.held_out,
        "max_length": recipe.data.max_length,
        "bad_rows": recipe.data.bad_rows,
        "seed": recipe.train.seed,
        "leaks": recipe.data.leak_settings,
    }
