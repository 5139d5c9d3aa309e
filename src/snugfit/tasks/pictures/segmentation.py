"""Classes of pixels, learned from pictures with masks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn

    from snugfit.core.loss_terms import Loss
    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.data.pictures.masks import MaskData
    from snugfit.data.pictures.picture_format import PictureFormat
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

NETWORKS = ("unet",)
MASK_COLUMNS = ("mask", "masks", "label", "seg", "segmentation", "annotation")
_SIDE = 128
_PREDICTION = "predicted_mask"
_AUXILIARY_WEIGHT = "auxiliary_weight"
_EXAMPLE_ROWS = 5


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.examples import FILE
    from snugfit.data.pictures.masks import collate
    from snugfit.step.build import Material

    made = (_own_network if CARD.makes(recipe.model) else _library_network)(recipe, empty, keep)
    masks = made.masks
    return Task(
        Material(made.model, masks.train, masks.validation, _loss(recipe, made.auxiliary), collate),
        meta={
            "task": recipe.task,
            "labels": list(masks.classes),
            "image_column": recipe.data.image,
            "label_column": recipe.data.label,
            "pictures": made.format.as_dict(),
            _AUXILIARY_WEIGHT: made.auxiliary,
            **made.meta,
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data={**masks.report.as_dict(), "classes": list(masks.classes)},
        fingerprints=masks.fingerprints,
        sources=made.sources,
        messages=(*masks.report.warnings, *made.messages),
        processor=made.processor,
        delivered=_delivered,
        example_rows=[
            {recipe.data.image: masks.shown.rows[place][FILE]}
            for place in range(min(_EXAMPLE_ROWS, len(masks.shown)))
        ],
    )


@dataclass(frozen=True, kw_only=True)
class _Network:
    """A model for masks with its rows, and what a run and its bundle have to remember of it."""

    model: nn.Module
    masks: MaskData
    format: PictureFormat
    auxiliary: float
    meta: Mapping[str, Any]
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    messages: Sequence[str] = ()
    processor: Mapping[str, Any] | None = None


def _own_network(recipe: TaskRecipe, empty: bool, _keep: KeepPart | None) -> _Network:
    """Return a network that is made for the masks.

    Raises:
        SettingError: `data.size` cannot be halved as often as the network does.
    """
    from snugfit.data.pictures.picture_format import PictureFormat
    from snugfit.models.bundle import MASK_NETWORK
    from snugfit.models.mask_network import MaskNetwork, mask_settings

    settings = mask_settings(recipe.model, recipe.folder)
    side = recipe.data.size or _SIDE
    if side % 2**settings.levels:
        raise SettingError(
            "data.size",
            f"{side} cannot be halved {settings.levels} times",
            f"Give a multiple of {2**settings.levels}.",
        )
    picture_format = PictureFormat(side, side, None)
    masks = _masks_of(recipe, picture_format)
    network = MaskNetwork(settings=settings, classes=len(masks.classes))
    return _Network(
        model=network.make(recipe.train.seed, empty=empty),
        masks=masks,
        format=picture_format,
        auxiliary=settings.auxiliary,
        meta={MASK_NETWORK: network.as_dict()},
    )


def _library_network(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> _Network:
    """Return a network of transformers or torchvision."""
    from snugfit.models.segmenter import Segmenter, auxiliary_weight
    from snugfit.tasks.common.picture_models import (
        load_pictures_model,
        meta_of,
        network_of,
        picture_format_of,
    )
    from snugfit.tasks.recipe_model import load_from, source_files

    whole = replace(picture_format_of(recipe, pixels=True), resize=None)  # a mask is of all of its picture
    masks = _masks_of(recipe, whole)
    load = partial(load_pictures_model, labels=masks.classes, pixels=True, folder=recipe.folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    network = network_of(loaded.model)
    return _Network(
        model=Segmenter(loaded.model) if network is None else loaded.model,
        masks=masks,
        format=whole,
        auxiliary=auxiliary_weight(loaded.model) if network is None else network.auxiliary_weight,
        meta=meta_of(network),
        sources=source_files(recipe),
        messages=loaded.messages,
        processor=whole.processor() if network is None else None,
    )


def _masks_of(recipe: TaskRecipe, picture_format: PictureFormat) -> MaskData:
    from snugfit.data.pictures.mask_files import opened_mask
    from snugfit.data.pictures.masks import MaskSource, load_masks
    from snugfit.data.pictures.pixels import opened
    from snugfit.tasks.common.picture_task import picture_cache_of

    data, cache = recipe.data, picture_cache_of(recipe)
    return load_masks(
        MaskSource(
            train=data.rows,
            validation=data.held_out,
            image=data.image,
            label=data.label,
            classes=None if data.classes is None else tuple(data.classes),
            augment=tuple(data.augment),
            bad_rows=data.bad_rows,
            seed=recipe.train.seed,
            leaks=data.leak_settings,
            decode=opened if cache is None else cache.opened,
            decode_mask=opened_mask if cache is None else cache.opened_mask,
        ),
        picture_format,
        folder=recipe.folder,
    )


def _loss(recipe: TaskRecipe, auxiliary: float) -> str | Loss:
    """Return the recipe's loss, with that of the auxiliary head where there is one."""
    from snugfit.kit.losses.auxiliary_loss import WithAuxiliary

    if recipe.loss == "cross_entropy":
        return WithAuxiliary(auxiliary)
    return loss_of(recipe)


def _delivered(model: nn.Module) -> nn.Module:
    """Return the part of a model that is saved: of one of transformers, that alone."""
    from snugfit.models.segmenter import Segmenter

    return model.network if isinstance(model, Segmenter) else model


def _forward(model: nn.Module, data: Mapping[str, Any]) -> Any:
    from snugfit.data.pictures.masks import INPUT
    from snugfit.models.segmenter import pixel_logits

    # in the process that trained it the model is whole
    network = _delivered(model)
    return pixel_logits(network, data[INPUT]) if hasattr(network, "config") else model(data[INPUT])


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.data.examples import Examples
    from snugfit.data.pictures.masks import PicturesWithMasks, collate, load_mask_rows
    from snugfit.data.pictures.picture_format import PictureFormat
    from snugfit.kit.losses.auxiliary_loss import WithAuxiliary

    image, picture_format = meta["image_column"], PictureFormat.of(meta["pictures"])

    def encoded(rows: Sequence[Row]) -> MapStyle:
        return PicturesWithMasks(Examples.of_files(rows, image), picture_format)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_mask_rows(
            source,
            picture_format,
            image=image,
            label=meta["label_column"] if labelled else None,
            classes=len(meta["labels"]),
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    return Inference(
        encode=encoded,
        collate=collate,
        decode=_masks,
        columns=(_PREDICTION,),
        read=read,
        saved=_saved,
        plain=_as_png,
        counted="pixels",
        forward=_forward,
        loss=WithAuxiliary(_auxiliary_weight(meta)),
        metrics=CARD.metrics,
    )


def _auxiliary_weight(meta: Mapping[str, Any]) -> float:
    from snugfit.models.bundle import MASK_NETWORK

    # bundles of earlier versions say it in the settings of their network alone
    weight = meta.get(_AUXILIARY_WEIGHT)
    return float(meta[MASK_NETWORK]["settings"]["auxiliary"] if weight is None else weight)


def _masks(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return the likeliest class of each pixel, as arrays of uint8 of the pictures' own sizes."""
    import numpy as np
    from PIL import Image

    from snugfit.core.losses import logits_of

    masks = logits_of(outputs).argmax(dim=-1).to("cpu").numpy().astype(np.uint8)
    whole = [
        Image.fromarray(mask).resize(each["sides"], Image.Resampling.NEAREST)
        for mask, each in zip(masks, examples, strict=True)
    ]
    return [{_PREDICTION: np.asarray(mask)} for mask in whole]


def _as_png(prediction: Prediction) -> Prediction:
    """Return a prediction with its mask as the bytes of a PNG."""
    import io

    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(prediction[_PREDICTION]).save(written, "PNG")
    return {_PREDICTION: written.getvalue()}


def _saved(prediction: Prediction, folder: Path, name: str) -> Prediction:
    """Write a mask into a folder; return the prediction with its file's name there."""
    from PIL import Image

    file = f"{name}.png"
    Image.fromarray(prediction[_PREDICTION]).save(folder / file)
    return {_PREDICTION: file}


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.pictures.mask_files import opened_mask
    from snugfit.data.pictures.masks import read_masks
    from snugfit.tasks.common.picture_task import picture_cache_of

    data, cache = recipe.data, picture_cache_of(recipe)
    loaded = read_masks(
        data.rows,
        "data.train",
        image=data.image,
        label=data.label,
        folder=recipe.folder,
        classes=None if data.classes is None else len(data.classes),
        decode_mask=opened_mask if cache is None else cache.opened_mask,
    )
    paths = zip(loaded.part.texts, loaded.masks, strict=True)
    records = [{data.image: os.path.abspath(path), data.label: os.path.abspath(mask)} for path, mask in paths]
    return replace(
        loaded.part, records=records, digests=loaded.digests, classes=data.classes or loaded.numbers
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    images = [name for name in source.columns if source.names_pictures(name)]
    label = data.get("label") or next(filter(_names_masks, images), None)
    image = data.get("image") or next((name for name in images if name != label), None)
    if label not in images or image not in images:
        return None
    of_folder = source.in_folders
    return Recognition(
        data={
            **({} if of_folder else {"image": image, "label": label}),
            "size": _SIDE,
            "augment": ("crop", "flip"),
        },
        reason=f"{counted(len(source.rows), 'picture')}, each with a mask {'of its name' if of_folder else f'in column {label!r}'}",
        score=0.96,
        examples=len(source.rows),
        comments={
            "data.size": "larger shows more of each picture, and takes longer",
            "data.augment": "changes that are drawn for each picture and its mask alike",
        },
    )


def _names_masks(column: str) -> bool:
    """Return whether a column is called as masks are; those of shards have their suffix behind it.

    >>> _names_masks("Mask"), _names_masks("mask.png"), _names_masks("image")
    (True, True, False)
    """
    return Path(column.casefold()).stem in MASK_COLUMNS


CARD = Card(
    name="segmentation",
    summary="Tell which class each pixel of a picture is of.",
    loss="cross_entropy",
    metrics=("mean_iou", "accuracy"),
    settings=("image", "label", "classes", "size", "augment", "picture_cache", "bad_rows"),
    load=_load,
    inference=_inference,
    networks=NETWORKS,
    model="masks",
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder with folders of images and of masks, or a file of rows with paths of both",
    new_rows="PICTURES",
    plain_rows=True,
    pipeline="image-segmentation",
)
