"""An encoder of pictures, learned without labels: two views of a picture are put near each other, and away from those of all other pictures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.picture_models import check_of_transformers, picture_format_of
from snugfit.tasks.common.picture_task import (
    PICTURE_ROWS,
    encoder_inference,
    encoder_task,
    picture_settings,
    read_picture_rows,
    recognize_without_labels,
)
from snugfit.tasks.inference import Inference
from snugfit.tasks.recipe_model import load_from
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_WIDTH = 64
"""Of the projection that the loss compares."""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.pictures.picture_pairs import collate_pairs, load_picture_pairs
    from snugfit.models.huggingface import PICTURES, load_classifier
    from snugfit.models.pair_encoder import FEATURES, PairEncoder
    from snugfit.step.build import Material

    check_of_transformers(recipe)
    folder, seed = recipe.folder, recipe.train.seed
    picture_format = picture_format_of(recipe)
    pairs = load_picture_pairs(picture_settings(recipe, None), picture_format, folder=folder)
    load = partial(load_classifier, labels=FEATURES, of=PICTURES, headless=True, folder=folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    model = PairEncoder(loaded.model, recipe.model, _WIDTH, seed, empty=empty)
    material = Material(model, pairs.train, pairs.validation, loss_of(recipe), collate_pairs)
    return encoder_task(recipe, material, picture_format, pairs, loaded.messages)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    return encoder_inference(meta, CARD.name, "the projection that its loss compares")


def _read_rows(recipe: TaskRecipe) -> Part:
    return read_picture_rows(recipe, None)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    return recognize_without_labels(
        source,
        data,
        score=0.2,
        augment=("crop", "flip", "color"),
        comment="changes that leave what a picture shows: two views of it are to be told as one",
    )


CARD = Card(
    name="contrastive-pretraining",
    summary="Learn an encoder from pictures without labels, for a classifier that has few.",
    loss="nt_xent",
    losses=("nt_xent", "info_nce_symmetric"),
    metrics=("recall_at_1",),
    settings=PICTURE_ROWS,
    load=_load,
    inference=_inference,
    model="pictures",
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder of pictures, or a file of rows with their paths",
    new_rows="PICTURES",
    plain_rows=True,
    pipeline="image-feature-extraction",
)
