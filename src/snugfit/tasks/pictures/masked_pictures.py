"""An encoder of pictures, learned without labels: hidden squares of a picture are drawn from those around them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.picture_models import check_of_transformers
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


_KINDS = ("vit", "deit")
"""Models of transformers that take a token in place of a patch, and whose classifiers read the first token."""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.pictures.masked_pictures import (
        PROBABILITY,
        Squares,
        collate_masked,
        load_masked_pictures,
    )
    from snugfit.data.pictures.picture_format import format_of
    from snugfit.models import huggingface
    from snugfit.models.masked_encoder import MaskedEncoder, patch_side
    from snugfit.step.build import Material

    check_of_transformers(recipe)
    data, folder = recipe.data, recipe.folder
    config, processor = huggingface.input_settings(
        recipe.model, from_scratch=recipe.from_scratch, folder=folder
    )
    load = partial(huggingface.load_masked_pictures, kinds=_KINDS, folder=folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    picture_format = format_of(config, processor, recipe.model).with_side(data.size)
    probability = PROBABILITY if data.mask_probability is None else data.mask_probability
    model = MaskedEncoder(loaded.model)
    squares = Squares.of(picture_format, patch_side(model.backbone.config), probability)
    pictures = load_masked_pictures(picture_settings(recipe, None), picture_format, squares, folder=folder)
    material = Material(model, pictures.train, pictures.validation, loss_of(recipe), collate_masked)
    return encoder_task(recipe, material, picture_format, pictures, loaded.messages)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    return encoder_inference(meta, CARD.name, "the layer that draws what is hidden")


def _read_rows(recipe: TaskRecipe) -> Part:
    return read_picture_rows(recipe, None)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    return recognize_without_labels(
        source,
        data,
        score=0.1,
        augment=("crop", "flip"),
        comment="changes of the pictures, before squares of them are hidden",
    )


CARD = Card(
    name="masked-pictures",
    summary="Draw hidden squares of pictures from those around them, as transformers of pictures are pretrained.",
    loss="masked_pixels",
    losses=("masked_pixels",),
    settings=(*PICTURE_ROWS, "mask_probability"),
    load=_load,
    inference=_inference,
    model="pictures",
    architectures=_KINDS,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder of pictures, or a file of rows with their paths",
    new_rows="PICTURES",
    plain_rows=True,
    pipeline="image-feature-extraction",
)
