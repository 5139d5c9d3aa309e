"""Classes of texts, learned from rows with a label each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.texts import (
    ROWS,
    labelled_text_inference,
    labelled_text_task,
    length_of_texts,
    text_columns,
)
from snugfit.tasks.inference import Inference
from snugfit.tasks.recognition import CLASS_COLUMNS, NAMED_LABEL, Recognition, Rows, Script
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn

    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_RATINGS = ("rating", "ratings", "stars", "score", "grade", "similarity")
"""Names of columns of which a few values are classes, and more of them a number to predict."""

_LAST_WORDS = ("label", "class", "sentiment", "intent", "rating", "stars", "score", "grade")
"""Last words of a name such as `sentiment_label`."""

_ONLY_NUMBERS, _GUESS = 0.67, 0.2
"""How likely a column is one of labels; texts alone, for a language model, are likelier than a guess."""

_YEARS = range(1900, 2101)
"""Whole numbers that are years, and no classes, unless the column is called as those are."""

_MOST_RATINGS = 9
_MOST_CLASSES = 1000
_MOST_WORDS = 4
_ROWS_OF_A_CLASS = 10
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


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    return labelled_text_task(recipe, empty, keep, classes=True)


def _load_empty(recipe: TaskRecipe, name: str) -> nn.Module:
    from snugfit.models.huggingface import load_classifier

    model: nn.Module = load_classifier(name, ("0", "1"), folder=recipe.folder, empty=True).model
    return model


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.tasks.common.classes import most_likely

    labels = tuple(meta["labels"])
    return replace(
        labelled_text_inference(
            meta, tokenizer, labels, partial(most_likely, labels), ("prediction", "probability")
        ),
        classes=labels,
        loss=cross_entropy,
        metrics=CARD.metrics,
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    label, score = (data["label"], NAMED_LABEL) if data.get("label") else _label(source)
    if label is None or all(isinstance(value, float) for value in source.values(label)):
        return None  # numbers with fractions name no classes
    columns, second = text_columns(source, label, data)
    if not columns:
        return None
    classes = source.classes(label)
    return Recognition(
        data={
            "text": columns,
            **second,
            "label": label,
            "max_length": length_of_texts(source, columns, second),
        },
        reason=f"{counted(len(source.rows), 'row')}, {counted(len(classes), 'class')} in column '{label}'",
        score=score,
        examples=len(source.rows),
        comments={"data.label": f"{len(classes):,} classes of {source.class_sizes(label)} rows each"},
    )


def _label(rows: Rows) -> tuple[str | None, float]:
    """Return the column of labels, and how likely it is one: by its name, else by its few short values or whole numbers."""
    half = len(rows.rows) // 2
    for names, most in ((CLASS_COLUMNS, half), (_RATINGS, min(half, _MOST_RATINGS))):
        label = rows.named(names)
        if label is not None and _is_label(rows, label, most):
            return label, NAMED_LABEL
    possible = [column for column in rows.columns if _may_be_label(rows, column, max(2, half // 2))]
    likely = [
        column
        for column in possible
        if len(rows.classes(column)) <= max(2, len(rows.rows) // _ROWS_OF_A_CLASS)
    ]
    named = [column for column in likely if _last_word(column) in _LAST_WORDS]
    if named:
        return named[0], NAMED_LABEL
    words = [column for column in likely if rows.is_text(column)]
    if words:
        return min(words, key=lambda column: len(rows.classes(column))), NAMED_LABEL
    if len(likely) == 1:
        return likely[0], _ONLY_NUMBERS
    return (possible[-1], _GUESS) if possible else (None, 0)


def _may_be_label(rows: Rows, column: str, most: int) -> bool:
    """Return whether a column holds few values, which are short texts or whole numbers."""
    if rows.is_text(column):
        return rows.words(column) <= _MOST_WORDS and _is_label(rows, column, most)
    values = [str(value).strip() for value in rows.values(column)]
    if not all(value.lstrip("+-").isdecimal() for value in values):
        return False
    years = all(value.isdecimal() and int(value) in _YEARS for value in values)
    return not years and _is_label(rows, column, min(most, _MOST_RATINGS))


def _last_word(column: str) -> str:
    return re.split(r"[\W_]+", column.strip().casefold())[-1]


def _is_label(rows: Rows, column: str, most: int) -> bool:
    values = rows.values(column)
    names = isinstance(values[0], (str, int)) if values else False
    return names and 2 <= len(rows.classes(column)) <= min(most, _MOST_CLASSES)


CARD = Card(
    name="text-classification",
    summary="Tell which class a text is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=(*ROWS, "pair", "label"),
    columns=("text", "pair", "label"),
    load=_load,
    load_empty=_load_empty,
    classes=True,
    inference=_inference,
    recognize=_recognize,
    sample=(".csv", _SAMPLE),
    pipeline="text-classification",
)
