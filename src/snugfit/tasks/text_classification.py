"""Classes of texts, learned from rows with a label each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.tasks.inference import Inference, Row
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of, length_of_rows
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.tasks.texts import ROWS, material_of, row_settings, source_files

if TYPE_CHECKING:
    from torch import nn

    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.recipe import Recipe

_LABELS = ("label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "tag", "y")
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
_MOST_CLASSES = 1000
_MOST_WORDS = 4
_SAMPLE = """\
text,label
The delivery came on time and everything was there,good
Great quality for that price,good
The staff were kind and quick to answer,good
It works as it should and looks well made,good
I would buy it again at once,good
The best one that I have had so far,good
The parcel came late and half of it was missing,bad
It broke on the second day,bad
Nobody answers the phone or the mail,bad
The colour is not the one on the picture,bad
I want my money back,bad
Far too loud and far too heavy,bad
"""


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.marked_example import marked_parts
    from snugfit.data.text import TextSettings, load_text
    from snugfit.models.huggingface import load_classifier
    from snugfit.models.tokenizer import check_length, load_tokenizer

    settings = TextSettings(label=recipe.data.label, **row_settings(recipe))
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    data = load_text(settings, tokenizer, folder=recipe.folder)
    loaded = load_classifier(
        recipe.model,
        data.labels,
        tokenizer=tokenizer,
        seed=recipe.train.seed,
        from_scratch=recipe.from_scratch,
        folder=recipe.folder,
        techniques=recipe.all_techniques(),
        empty=empty,
        keep=keep,
    )
    check_length(loaded.model, recipe.data.max_length)

    def load_other(name: str) -> LoadedModel:
        return load_classifier(name, data.labels, tokenizer=tokenizer, folder=recipe.folder, empty=empty)

    return Task(
        material_of(recipe, loaded, data, load_other),
        meta={
            "task": recipe.task,
            "labels": list(data.labels),
            "text_columns": list(recipe.data.text),
            "label_column": recipe.data.label,
            "max_length": recipe.data.max_length,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        example=marked_parts(data.train[0], tokenizer),
        fingerprints=data.fingerprints,
        sources=source_files(recipe),
        messages=(*data.report.warnings, *loaded.messages),
        tokenizer=tokenizer,
        example_rows=data.example_rows,
    )


def _load_empty(recipe: Recipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import load_classifier

    model: nn.Module = load_classifier(name, ("0", "1"), folder=recipe.folder, empty=True).model
    return model


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.data.bad_rows import text_of
    from snugfit.data.file_rows import FileRows
    from snugfit.data.text import load_text_rows
    from snugfit.data.tokens import encode, padding_for
    from snugfit.tasks.classes import most_likely

    labels = tuple(meta["labels"])

    def encoded(rows: Sequence[Row]) -> Sequence[Mapping[str, Any]]:
        texts = [text_of(row, meta["text_columns"]) for row in rows]
        return encode(texts, tokenizer, meta["max_length"]).examples

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_text_rows(
            source,
            tokenizer,
            text=meta["text_columns"],
            label=meta["label_column"] if labelled else None,
            labels=labels if labelled else (),
            max_length=meta["max_length"],
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    return Inference(
        encode=encoded,
        collate=padding_for(tokenizer),
        decode=partial(most_likely, labels),
        columns=("prediction", "probability"),
        length=lambda example: len(example["input_ids"]),
        read=read,
        classes=labels,
        loss=cross_entropy,
        metrics=CARD.metrics,
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    label = data.get("label") or _label(source)
    if label is None:
        return None
    columns = columns_of(data.get("text") or _texts(source, label))
    if not columns:
        return None
    classes = source.classes(label)
    return Recognition(
        data={"text": columns, "label": label, "max_length": length_of_rows(source.characters(columns))},
        reason=f"{len(source.rows):,} rows, {len(classes):,} classes in column '{label}'",
        score=0.8,
        examples=len(source.rows),
        comments={"data.label": f"{len(classes):,} classes of {source.class_sizes(label)} rows each"},
    )


def _label(rows: Rows) -> str | None:
    """Return the column of labels: by its name, else the one column of few short values."""
    label = rows.named(_LABELS)
    if label is not None and _is_label(rows, label, most=len(rows.rows) // 2):
        return label
    short = [column for column in rows.columns if _is_label(rows, column, most=max(2, len(rows.rows) // 10))]
    short = [column for column in short if rows.is_text(column) and rows.words(column) <= _MOST_WORDS]
    return min(short, key=lambda column: len(rows.classes(column)), default=None)


def _is_label(rows: Rows, column: str, most: int) -> bool:
    values = rows.values(column)
    names = isinstance(values[0], (str, int)) if values else False
    return names and 2 <= len(rows.classes(column)) <= min(most, _MOST_CLASSES)


def _texts(rows: Rows, label: str) -> tuple[str, ...]:
    """Return the columns of text: those with sentences, and those with texts under a usual name."""
    columns = [column for column in rows.columns if column != label and rows.is_text(column)]
    usual = {name for name in columns if name.strip().casefold() in _TEXTS}
    return tuple(column for column in columns if column in usual or rows.is_prose(column))


CARD = Card(
    name="text-classification",
    summary="Tell which class a text is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=(*ROWS, "label"),
    load=_load,
    load_empty=_load_empty,
    classes=True,
    inference=_inference,
    recognize=_recognize,
    sample=(".csv", _SAMPLE),
    pipeline="text-classification",
)
