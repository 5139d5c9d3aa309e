"""Hidden tokens of texts, predicted from those around them: what encoders are pretrained by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import DataError
from snugfit.tasks.common.texts import ROWS, STREAM, material_of, row_settings, stream_settings, task_of_texts
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recipe_model import load_from
from snugfit.tasks.recognition import (
    Recognition,
    Rows,
    Script,
    columns_of,
    length_of_rows,
    of_plain_text,
)
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.data.texts.masked import MaskedTexts
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_LIKELIEST = 5
"""Tokens that are told for each mask."""

_OF_PLAIN_TEXT, _OF_ROWS = 0.25, 0.15
"""How likely texts are for this task: less than for a language model, which the same texts suit."""

_SAMPLE = """\
{"text": "A bird in the hand is worth two in the bush."}
{"text": "Actions speak louder than words."}
{"text": "All that glitters is not gold."}
{"text": "A stitch in time saves nine."}
{"text": "Better late than never."}
{"text": "Birds of a feather flock together."}
{"text": "Practice makes perfect."}
{"text": "Do not count your chickens before they hatch."}
{"text": "Every cloud has a silver lining."}
{"text": "Fortune favours the bold."}
"""

_EXAMPLE_ROWS = 8


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.marked_example import marked_parts
    from snugfit.data.texts.masked import PROBABILITY, MaskedSettings, load_masked
    from snugfit.models.huggingface import load_masked_lm
    from snugfit.models.tokenizer import check_length, load_tokenizer

    probability = PROBABILITY if recipe.data.mask_probability is None else recipe.data.mask_probability
    settings = MaskedSettings(mask_probability=probability, **row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    if (stream := stream_settings(recipe)) is None:
        data = load_masked(settings, tokenizer, folder=recipe.folder)
    else:
        from snugfit.data.texts.streamed_texts import stream_masked

        data = stream_masked(settings, stream, tokenizer, folder=recipe.folder)
    load = partial(load_masked_lm, tokenizer=tokenizer, folder=recipe.folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    check_length(loaded.model, recipe.data.max_length)
    return task_of_texts(
        recipe,
        material_of(recipe, loaded, data, load),
        loaded,
        data,
        tokenizer,
        meta={"mask_probability": probability, "mask_seed": recipe.train.seed},
        example=marked_parts(data.shown[0], tokenizer),
        example_rows=_gaps(data.validation or data.shown, recipe.data.text, tokenizer),
    )


def _gaps(texts: MaskedTexts, columns: Sequence[str], tokenizer: Any) -> list[dict[str, Any]]:
    """Return the first texts, each with a gap in place of its middle word, as rows to fill."""
    rows = []
    for place in range(min(len(texts), _EXAMPLE_ROWS)):
        words = tokenizer.decode(texts.rows[place]["input_ids"], skip_special_tokens=True).split()
        words[len(words) // 2 : len(words) // 2 + 1] = [tokenizer.mask_token]
        rows.append({columns[0]: " ".join(words), **dict.fromkeys(columns[1:], "")})
    return rows


def _load_empty(recipe: TaskRecipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import load_masked_lm

    model: nn.Module = load_masked_lm(name, folder=recipe.folder, empty=True).model
    return model


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import LOSSES
    from snugfit.data.bad_rows import text_of
    from snugfit.data.files.file_rows import FileRows
    from snugfit.data.texts.masked import MaskedSettings, load_masked_rows
    from snugfit.data.texts.tokens import encode, padding_for

    text, length, mask = tuple(meta["text_columns"]), meta["max_length"], tokenizer.mask_token_id
    settings = MaskedSettings(
        train="",
        text=text,
        max_length=length,
        validation=None,
        seed=meta["mask_seed"],
        mask_probability=meta["mask_probability"],
    )

    def encoded(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        examples = encode([text_of(row, text) for row in rows], tokenizer, length).examples
        for number, example in enumerate(examples, 1):
            if mask not in example["input_ids"]:
                raise DataError(
                    f"row {number}",
                    "has no mask",
                    f"Write {tokenizer.mask_token} in place of each word to predict.",
                )
        return examples

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        own = replace(settings, bad_rows=bad_rows)
        return load_masked_rows(source, own, tokenizer, scored=labelled, folder=Path.cwd())

    return Inference(
        encode=encoded,
        collate=padding_for(tokenizer),
        decode=partial(_filled, tokenizer),
        columns=("prediction", "tokens"),
        length=lambda example: len(example["input_ids"]),
        predicts_training_rows=False,
        read=read,
        loss=LOSSES[CARD.loss],
        metrics=CARD.metrics,
    )


def _filled(
    tokenizer: PreTrainedTokenizerBase, outputs: Any, examples: Sequence[Mapping[str, Any]]
) -> list[Prediction]:
    """Return each text with the likeliest token in place of each mask, and of each mask the likeliest tokens with their probabilities."""
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    logits, predictions = logits_of(outputs), []
    for row, example in enumerate(examples):
        ids = list(example["input_ids"])
        places = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        likely = logits[row, places].float().softmax(dim=-1).topk(min(_LIKELIEST, logits.shape[-1]))
        assumed = [[0] * _LIKELIEST] * len(places)
        tokens, shares = read(likely.indices, assume=assumed), read(likely.values, assume=assumed)
        for place, best in zip(places, tokens, strict=True):
            ids[place] = best[0]
        likeliest = [
            [
                {"token": str(tokenizer.decode([token])).strip(), "probability": round(share, 6)}
                for token, share in zip(*both, strict=True)
            ]
            for both in zip(tokens, shares, strict=True)
        ]
        text = str(tokenizer.decode(ids, skip_special_tokens=True)).strip()
        predictions.append({"prediction": text, "tokens": likeliest})
    return predictions


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    if (plain := of_plain_text(source, _OF_PLAIN_TEXT)) is not None:
        return plain
    columns = columns_of(data.get("text") or [column for column in source.columns if source.is_prose(column)])
    if not columns:
        return None
    lengths = source.characters(columns)
    return Recognition(
        data={"text": columns, "max_length": length_of_rows(lengths)},
        reason=f"{counted(len(source.rows), 'text')}",
        score=_OF_ROWS,
        examples=len(source.rows),
    )


CARD = Card(
    name="masked-lm",
    summary="Predict hidden tokens of texts from those around them, as encoders are pretrained.",
    loss="cross_entropy",
    losses=("cross_entropy",),
    metrics=("perplexity", "accuracy"),
    settings=(*ROWS, STREAM, "mask_probability"),
    load=_load,
    load_empty=_load_empty,
    inference=_inference,
    recognize=_recognize,
    rows="a file of texts, or one text, read in blocks",
    new_rows="NEW.jsonl",
    plain_rows=True,
    pipeline="fill-mask",
    sample=(".jsonl", _SAMPLE),
)
