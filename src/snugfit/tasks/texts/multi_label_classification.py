"""Labels of texts, or of pairs of texts, of which a row has any number: none, one or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.classes import columns_of_labels, likely_labels, of_label_sets
from snugfit.tasks.common.multi_label_columns import label_columns, label_meta, label_sets_of, sets_of
from snugfit.tasks.common.texts import (
    ROWS,
    labelled_text_inference,
    labelled_text_task,
    length_of_texts,
    text_columns,
)
from snugfit.tasks.inference import Inference
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_SAMPLE = """\
{"text": "The parcel came late and half of it was missing", "labels": ["delivery", "complaint"]}
{"text": "It broke on the second day", "labels": ["quality", "complaint"]}
{"text": "The delivery came on time and everything was there", "labels": ["delivery", "praise"]}
{"text": "Great quality, well packed and on time", "labels": ["delivery", "quality", "praise"]}
{"text": "Where is your shop?", "labels": []}
{"text": "I would buy it again at once", "labels": ["praise"]}
{"text": "Far too loud and far too heavy", "labels": ["quality", "complaint"]}
{"text": "Nobody answers the phone", "labels": ["complaint"]}
"""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.step.metrics.label_metrics import label_set_metrics

    meta, metrics = label_meta(recipe.data), label_set_metrics(recipe.data.threshold)
    return labelled_text_task(
        recipe, empty, keep, classes=True, sets=label_sets_of(recipe.data), meta=meta, metrics=metrics
    )


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    labels = tuple(meta["labels"])
    decode = partial(likely_labels, labels, meta["threshold"])
    use = labelled_text_inference(meta, tokenizer, labels, decode, columns_of_labels(labels), sets_of(meta))
    return of_label_sets(use, meta, CARD.metrics)


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.usable_rows import read_part

    data, sets = recipe.data, label_sets_of(recipe.data)
    part = read_part(data.rows, "data.train", data.text, sets, None, recipe.folder, pair=data.pair)
    return part if sets.columns else replace(part, classes=sets.names_in(part.labels))


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    labels = label_columns(source, data, source.is_text)
    if labels is None:
        return None
    texts, second = text_columns(source, labels.columns, data)
    if not texts:
        return None
    return Recognition(
        data={
            "text": texts,
            **second,
            **labels.settings,
            "max_length": length_of_texts(source, texts, second),
        },
        reason=f"{counted(len(source.rows), 'row')}, {labels.reason}",
        score=labels.score,
        examples=len(source.rows),
    )


CARD = Card(
    name="multi-label-classification",
    summary="Tell which labels a text has, of which it may have none or any number.",
    loss="binary_cross_entropy",
    metrics=("micro_f1", "macro_f1", "exact_match", "mean_average_precision"),
    losses=("binary_cross_entropy",),
    settings=(*ROWS, "pair", "label", "separator", "label_columns", "classes", "threshold"),
    columns=("text", "pair", "label_columns"),
    load=_load,
    inference=_inference,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with a list of labels, or with a column of 0 and 1 for each",
    new_rows="NEW.jsonl",
    pipeline="text-classification",
    sample=(".jsonl", _SAMPLE),
    plain_rows=True,
)
