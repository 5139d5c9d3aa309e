"""Texts that are written after reading others: translations, summaries, answers, corrections."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.tasks.common.texts import ROWS, material_of, row_settings, task_of_texts
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recipe_model import load_from
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of, length_of_rows
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.usable_rows import Part
    from snugfit.kit.language_models.generation import Generation
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.step.build import Material
    from snugfit.tasks.task_recipe import TaskRecipe

_OWN = ("target", "prefix", "target_length")
"""Settings of `data` that no other task reads."""

_PAIRS = (
    ("source", "target"),
    ("article", "summary"),
    ("article", "highlights"),
    ("document", "summary"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("source_text", "target_text"),
    ("input_text", "target_text"),
    ("sentence", "translation"),
)
"""Names of columns of which the second is written after reading the first."""

_ALSO_ANSWERS = (("input", "output"), ("question", "answer"))
"""Names that a conversation with a language model has as well, which is likelier."""

_LANGUAGES = frozenset(
    [
        "ar",
        "cs",
        "da",
        "de",
        "en",
        "es",
        "fi",
        "fr",
        "hi",
        "it",
        "ja",
        "ko",
        "nl",
        "no",
        "pl",
        "pt",
        "ro",
        "ru",
        "sv",
        "tr",
        "uk",
        "zh",
    ]
)
_NAMED, _TRANSLATED, _ALSO = 0.93, 0.92, 0.6
_SAMPLE = """\
{"source": "The parcel came on Monday.", "target": "Das Paket kam am Montag."}
{"source": "The parcel comes on Tuesday.", "target": "Das Paket kommt am Dienstag."}
{"source": "The letter came on Friday.", "target": "Der Brief kam am Freitag."}
{"source": "The letter comes on Sunday.", "target": "Der Brief kommt am Sonntag."}
{"source": "The train came late.", "target": "Der Zug kam spät."}
{"source": "The train comes on Monday.", "target": "Der Zug kommt am Montag."}
{"source": "The bill came on Wednesday.", "target": "Die Rechnung kam am Mittwoch."}
{"source": "The bill comes late.", "target": "Die Rechnung kommt spät."}
"""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.text_to_text import TextToTextSettings, load_text_to_text_rows
    from snugfit.kit.language_models.generation import stops_of
    from snugfit.kit.language_models.written_texts import WrittenTexts
    from snugfit.models.huggingface import load_text_to_text
    from snugfit.models.tokenizer import check_length, load_tokenizer
    from snugfit.step.metrics.text_metrics import OF_TEXTS, text_metrics

    own = {name: getattr(recipe.data, name) for name in _OWN}
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_text_to_text_rows(
        TextToTextSettings(**own, **row_settings(recipe)), tokenizer, folder=recipe.folder
    )
    load = partial(load_text_to_text, tokenizer=tokenizer, folder=recipe.folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    check_length(loaded.model, recipe.data.max_length)
    check_length(loaded.model, recipe.data.target_length, "data.target_length")
    stops = stops_of(tokenizer)
    _set_generation(loaded.model, stops, recipe.data.target_length)
    material = material_of(recipe, loaded, data, load, metrics=text_metrics(_decoder(tokenizer)))
    if written := [name for name in recipe.evaluate.metrics if name in OF_TEXTS]:
        _check_whole(recipe, written[0])
        material = replace(material, forward=WrittenTexts(_greedy(recipe.data.target_length), stops))
    example = data.train[0]
    parts = [(example["input_ids"], False), (example["labels"], True)]
    task = task_of_texts(
        recipe,
        material,
        loaded,
        data,
        tokenizer,
        meta={
            "target_column": recipe.data.target,
            **{name: own[name] for name in ("prefix", "target_length")},
        },
        example_rows=data.example_rows,
        example=[[f"{tokenizer.decode(ids)}\n", scored] for ids, scored in parts],
    )
    return task


def _check_whole(recipe: TaskRecipe, metric: str) -> None:
    """Refuse to write texts in the training of a model of which each device has a part.

    Raises:
        SettingError: names the metric.
    """
    strategy = recipe.plan.strategy
    if strategy.startswith("fsdp"):
        raise SettingError(
            "evaluate.metrics",
            f"has {metric}, of texts that the model writes, and one that is spread over devices (plan.strategy: {strategy}) writes none",
            "Give plan.strategy: ddp, or leave it out and score the texts afterwards: snugfit evaluate RUN ROWS.",
        )


def _set_generation(model: Any, stops: Sequence[int], target_length: int) -> None:
    """Have the model say how it generates, so that others who load its folder end its texts as here."""
    generation = model.generation_config
    generation.eos_token_id = list(stops) or None
    generation.pad_token_id = model.config.pad_token_id
    generation.decoder_start_token_id = model.config.decoder_start_token_id
    generation.max_length, generation.max_new_tokens = None, target_length


def _greedy(target_length: int) -> Generation:
    from snugfit.kit.language_models.generation import Generation

    return Generation(max_new_tokens=target_length)


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Return the function that makes a text of tokens."""

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    return decode


def _load_empty(recipe: TaskRecipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import load_text_to_text

    model: nn.Module = load_text_to_text(name, folder=recipe.folder, empty=True).model
    return model


def _assume(recipe: TaskRecipe, material: Material) -> Material:
    from snugfit.data.assumed import WINDOWS_PER_EPOCH, Alike

    length = recipe.data.max_length
    example = {
        "input_ids": [0] * length,
        "attention_mask": [1] * length,
        "labels": [0] * recipe.data.target_length,
    }
    rows = Alike(example, WINDOWS_PER_EPOCH * recipe.train.examples_of(length))
    held_out = None if material.validation is None else rows
    return replace(material, train=rows, validation=held_out, loss=loss_of(recipe))


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    return _writing(meta, tokenizer, _greedy(meta["target_length"]))


def _writing(
    meta: Mapping[str, Any], tokenizer: Any, generation: Generation, streamer: Any = None
) -> Inference:
    """Return the use of a model, whose texts are chosen as `generation` says."""
    from snugfit.core.losses import LOSSES
    from snugfit.data.texts.text_to_text import TargetRows, TextToTextSettings, load_written_rows, read_text
    from snugfit.data.texts.tokens import encode, padding_for
    from snugfit.kit.language_models.generation import generate, stops_of
    from snugfit.kit.language_models.written_texts import WrittenTexts
    from snugfit.step.metrics.text_metrics import OF_TEXTS, text_metrics

    text, prefix, length = tuple(meta["text_columns"]), meta["prefix"], meta["max_length"]
    stops, text_of_tokens = stops_of(tokenizer), _decoder(tokenizer)
    settings = TextToTextSettings(
        train="",
        text=text,
        target=meta["target_column"],
        target_length=meta["target_length"],
        prefix=prefix,
        max_length=length,
        validation=None,
    )

    def encoded(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        texts = [read_text(row, text, prefix) for row in rows]
        return TargetRows(encode(texts, tokenizer, length).examples, None)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> Any:
        own = replace(settings, bad_rows=bad_rows)
        return load_written_rows(source, own, tokenizer, labelled=labelled, folder=Path.cwd())

    def run(model: nn.Module, batch: Any, places: Sequence[int]) -> list[list[int]]:
        return generate(model, batch, places, stops, generation, streamer)

    def decode(written: list[list[int]], _examples: Sequence[Any]) -> list[Prediction]:
        return [{"prediction": text_of_tokens(each)} for each in written]

    return Inference(
        encode=encoded,
        collate=padding_for(tokenizer),
        decode=decode,
        columns=("prediction",),
        length=lambda example: len(example["input_ids"]),
        forward=WrittenTexts(generation, stops).scored,
        run=run,
        generation=generation,
        with_generation=partial(_writing, meta, tokenizer),
        stops=stops,
        read=read,
        loss=LOSSES[CARD.loss],
        metrics=("perplexity", *OF_TEXTS),
        own_metrics=text_metrics(text_of_tokens),
    )


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.texts.text_to_text import read_targets

    data = recipe.data
    return read_targets(data.rows, "data.train", data.text, data.target, data.prefix, recipe.folder)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    if data.get("text") and data.get("target"):
        text, target, score = columns_of(data["text"]), data["target"], _NAMED
    else:
        named = _named(source, data.get("target"))
        if named is None:
            return None
        text, target, score = columns_of(data.get("text") or named[0]), named[1], named[2]
    if not all(column in source.columns and source.is_text(column) for column in (*text, target)):
        return None
    return Recognition(
        data={
            "text": text,
            "target": target,
            "max_length": length_of_rows(source.characters(text)),
            "target_length": length_of_rows(source.characters([target])),
        },
        reason=f"{counted(len(source.rows), 'row')} with a text ({', '.join(text)}) and one to write after it ({target})",
        score=score,
        examples=len(source.rows),
        comments={"data.text": "the text that is read", "data.target": "the text that is written"},
    )


def _named(rows: Rows, target: str | None) -> tuple[str, str, float] | None:
    """Return the columns of the text that is read and of the one to write, and how likely they are; None where their names do not say."""
    for pairs, score in ((_PAIRS, _NAMED), (_ALSO_ANSWERS, _ALSO)):
        for pair in pairs:
            source, written = (rows.named([name]) for name in pair)
            if source is not None and written is not None and target in (None, written):
                return source, written, score
    languages = [column for column in rows.columns if column.strip().casefold() in _LANGUAGES]
    if len(languages) == 2 and target in (None, *languages):
        written = languages[1] if target is None else target
        return next(each for each in languages if each != written), written, _TRANSLATED
    return None


CARD = Card(
    name="seq2seq",
    summary="Read one text and write another: translate, summarise, correct, answer.",
    loss="cross_entropy",
    losses=("cross_entropy",),
    metrics=("perplexity",),
    settings=(*ROWS, *_OWN),
    columns=("text", "target"),
    load=_load,
    load_empty=_load_empty,
    assume=_assume,
    inference=_inference,
    model="encoder-decoder",
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with a text to read and one to write",
    new_rows="NEW.jsonl",
    plain_rows=True,
    pipeline="text2text-generation",
    sample=(".jsonl", _SAMPLE),
)
