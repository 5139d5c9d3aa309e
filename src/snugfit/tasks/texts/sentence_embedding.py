"""Embeddings of texts, learned from pairs that belong together: the other texts of an update are what they are told from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.texts import ROWS, material_of, row_settings, task_of_texts
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recipe_model import load_from
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of, length_of_rows
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_ANCHORS = ("anchor", "query", "question", "text", "sentence", "sentence1", "sentence_a")
_POSITIVES, _NEGATIVES = ("positive",), ("negative",)
_SAMPLE = """\
{"anchor": "How do I send a parcel back?", "positive": "Returns are free within 30 days: print the label from your account."}
{"anchor": "When will my order arrive?", "positive": "Parcels take two to four working days."}
{"anchor": "Can I pay by invoice?", "positive": "We take cards, invoices and bank transfers."}
{"anchor": "The lamp does not light", "positive": "Check that the bulb is screwed in, then write to our service."}
{"anchor": "Do you have a shop?", "positive": "You find us in Oslo and in Rome, from ten to six."}
{"anchor": "How long is the guarantee?", "positive": "Every device has a guarantee of three years."}
"""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.texts.text_pairs import PairSettings, load_pairs
    from snugfit.kit.language_models.text_embeddings import TextEmbeddings
    from snugfit.models.huggingface import load_encoder
    from snugfit.models.tokenizer import check_length, load_tokenizer

    data = recipe.data
    settings = PairSettings(positive=data.positive, negative=data.negative, **row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    pairs = load_pairs(settings, tokenizer, folder=recipe.folder)
    load = partial(load_encoder, tokenizer=tokenizer, folder=recipe.folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    check_length(loaded.model, data.max_length)
    material = replace(material_of(recipe, loaded, pairs, load), forward=TextEmbeddings())
    meta = {"positive_column": data.positive, "negative_column": data.negative, "loss": recipe.loss}
    task = task_of_texts(
        recipe, material, loaded, pairs, tokenizer, meta=meta, example_rows=pairs.example_rows
    )
    return replace(task, settings=_sentence_transformers(loaded.model.config.hidden_size, data.max_length))


def _sentence_transformers(width: int, max_length: int) -> dict[str, Any]:
    """Return the files by which sentence-transformers gives the same embeddings."""
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    return {
        "modules.json": [
            {
                "idx": place,
                "name": str(place),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for place, (path, kind) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    }


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import LOSSES
    from snugfit.data.bad_rows import text_of
    from snugfit.data.files.file_rows import FileRows
    from snugfit.data.texts.text_pairs import encoded_texts, load_pair_rows, pads
    from snugfit.kit.language_models.text_embeddings import TextEmbeddings

    text, length = meta["text_columns"], meta["max_length"]
    further = [column for column in (meta["positive_column"], meta["negative_column"]) if column is not None]

    def encoded(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        return encoded_texts([(text_of(row, text),) for row in rows], tokenizer, length)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_pair_rows(
            source,
            tokenizer,
            text=text,
            further=further if labelled else (),
            max_length=length,
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    return Inference(
        encode=encoded,
        collate=pads(tokenizer, length),
        decode=_embeddings,
        columns=("embedding",),
        length=lambda example: len(example["input_ids"][0]),
        forward=TextEmbeddings(),
        read=read,
        loss=LOSSES.get(meta["loss"], LOSSES[CARD.loss]),
        metrics=CARD.metrics,
    )


def _embeddings(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return the embedding of each row's text, of length 1."""
    from torch.nn.functional import normalize

    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    unit = normalize(logits_of(outputs)[:, 0], dim=1)
    return [{"embedding": values} for values in read(unit, assume=[[0.0]] * len(examples))]


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.texts.text_pairs import read_pairs

    data = recipe.data
    further = [column for column in (data.positive, data.negative) if column is not None]
    return read_pairs(data.rows, "data.train", data.text, further, recipe.folder)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    positive = data.get("positive") or source.named(_POSITIVES)
    anchors = columns_of(data["text"]) if data.get("text") else (source.named(_ANCHORS),)
    if positive is None or not all(
        each is not None and source.is_text(each) for each in (*anchors, positive)
    ):
        return None
    text = tuple(filter(None, anchors))
    negative = data.get("negative") or source.named(_NEGATIVES)
    further = (positive, *([negative] if negative else []))
    lengths = [
        length for columns in (text, *((each,) for each in further)) for length in source.characters(columns)
    ]
    return Recognition(
        data={
            "text": text,
            "positive": positive,
            **({"negative": negative} if negative else {}),
            "max_length": length_of_rows(lengths),
        },
        reason=f"{len(source.rows):,} pairs of texts that belong together ({', '.join(text)} and {positive})",
        score=0.96,
        examples=len(source.rows),
    )


CARD = Card(
    name="sentence-embedding",
    summary="Put texts that belong together near each other, so that one is found by the other.",
    loss="info_nce",
    losses=("info_nce", "info_nce_symmetric"),
    metrics=("mrr", "recall_at_1", "recall_at_10"),
    settings=(*ROWS, "positive", "negative"),
    columns=("text", "positive", "negative"),
    load=_load,
    inference=_inference,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with a text and one that belongs to it, perhaps with one that does not",
    new_rows="NEW.jsonl",
    plain_rows=True,
    pipeline="feature-extraction",
    sample=(".jsonl", _SAMPLE),
)
