"""Labels of pictures, of which a row has any number: none, one or more."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.classes import columns_of_labels, likely_labels, of_label_sets
from snugfit.tasks.common.multi_label_columns import label_columns, label_meta, label_sets_of, sets_of
from snugfit.tasks.common.picture_task import (
    PICTURE_ROWS,
    labelled_picture_inference,
    labelled_picture_task,
    read_picture_rows,
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

_BEFORE_CLASSES = 0.1
"""What is added to the score of labels: joined labels look like names of classes too."""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.step.metrics.label_metrics import label_set_metrics

    meta, metrics = label_meta(recipe.data), label_set_metrics(recipe.data.threshold)
    return labelled_picture_task(
        recipe, empty, keep, sets=label_sets_of(recipe.data), meta=meta, metrics=metrics
    )


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    labels = tuple(meta["labels"])
    decode = partial(likely_labels, labels, meta["threshold"])
    use = labelled_picture_inference(meta, decode, columns_of_labels(labels), sets_of(meta))
    return of_label_sets(use, meta, CARD.metrics)


def _read_rows(recipe: TaskRecipe) -> Part:
    return read_picture_rows(recipe, label_sets_of(recipe.data))


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows) or source.in_folders:
        return None
    image = data.get("image") or next(filter(source.names_pictures, source.columns), None)
    labels = label_columns(source, data, source.names_pictures)
    if image is None or labels is None or not source.names_pictures(image):
        return None
    return Recognition(
        data={"image": image, **labels.settings, "augment": ("crop", "flip")},
        reason=f"{counted(len(source.rows), 'picture')}, {labels.reason}",
        score=labels.score + _BEFORE_CLASSES,
        examples=len(source.rows),
        comments={
            "data.augment": "changes that are drawn for each picture that is trained on; where a mirror image is something else, as of "
            "letters and digits: [crop]",
        },
    )


CARD = Card(
    name="multi-label-image-classification",
    summary="Tell which labels a picture has, of which it may have none or any number.",
    loss="binary_cross_entropy",
    metrics=("micro_f1", "macro_f1", "exact_match", "mean_average_precision"),
    losses=("binary_cross_entropy",),
    settings=(*PICTURE_ROWS, "label", "separator", "label_columns", "classes", "threshold"),
    load=_load,
    inference=_inference,
    model="pictures",
    changes_pictures=True,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with paths of pictures, and a list of labels or a column of 0 and 1 for each",
    new_rows="NEW.csv",
    plain_rows=True,
    pipeline="image-classification",
)
