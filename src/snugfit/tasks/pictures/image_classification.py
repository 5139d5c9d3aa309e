"""Classes of pictures, learned from a folder for each class, or from rows with a path and a label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

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

_LABELS = ("label", "labels", "class", "category", "target", "y")


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    return labelled_picture_task(recipe, empty, keep)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.tasks.common.classes import most_likely

    decode = partial(most_likely, tuple(meta["labels"]))
    use = labelled_picture_inference(meta, decode, ("prediction", "probability"))
    return replace(use, loss=cross_entropy, metrics=CARD.metrics)


def _read_rows(recipe: TaskRecipe) -> Part:
    return read_picture_rows(recipe, recipe.data.label)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    image = data.get("image") or next(filter(source.names_pictures, source.columns), None)
    label = data.get("label") or source.named(_LABELS) or source.repeated(image)
    if image is None or label is None or not source.names_pictures(image):
        return None
    classes = source.classes(label)
    columns = {} if source.in_folders else {"image": image, "label": label}
    where = "one folder each" if source.in_folders else f"in column '{label}'"
    return Recognition(
        data={**columns, "augment": ("crop", "flip")},
        reason=f"{counted(len(source.rows), 'picture')}, {counted(len(classes), 'class')}, {where}",
        score=0.9,
        examples=len(source.rows),
        comments={
            "data.train": f"{len(classes):,} classes of {source.class_sizes(label)} pictures each",
            "data.augment": "changes that are drawn for each picture that is trained on; where a mirror image is something else, as of "
            "letters and digits: [crop]",
        },
    )


CARD = Card(
    name="image-classification",
    summary="Tell which class a picture is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=(*PICTURE_ROWS, "label"),
    load=_load,
    classes=True,
    inference=_inference,
    model="pictures",
    changes_pictures=True,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder of pictures with a folder for each class, or a file of rows with their paths",
    new_rows="PICTURES",
    pipeline="image-classification",
)
