"""Classes of pixels, learned from pictures with masks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from snugfit.core.loss_terms import Loss
    from snugfit.data.file_rows import FileRows, MapStyle
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.mask_network import MaskSettings
    from snugfit.recipe import Recipe

NETWORKS = ("unet",)
MASK_COLUMNS = ("mask", "masks", "label", "seg", "segmentation", "annotation")
_SIDE = 128
_PREDICTION = "predicted_mask"


def _load(recipe: Recipe, empty: bool, _keep: KeepPart | None) -> Task:
    from snugfit.data.masks import MaskSource, collate, load_masks
    from snugfit.data.picture_format import PictureFormat
    from snugfit.models.bundle import MASK_NETWORK
    from snugfit.models.mask_network import MaskNetwork, mask_settings
    from snugfit.step.build import Material

    data = recipe.data
    settings = mask_settings(recipe.model, recipe.folder)
    side = data.size or _SIDE
    if side % 2**settings.levels:
        raise SettingError(
            "data.size",
            f"{side} cannot be halved {settings.levels} times",
            f"Give a multiple of {2**settings.levels}.",
        )
    picture_format = PictureFormat(side, side, None)
    loaded = load_masks(
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
        ),
        picture_format,
        folder=recipe.folder,
    )
    network = MaskNetwork(settings=settings, classes=len(loaded.classes))
    return Task(
        Material(
            network.make(recipe.train.seed, empty=empty),
            loaded.train,
            loaded.validation,
            _loss(recipe, settings),
            collate,
        ),
        meta={
            "task": recipe.task,
            "labels": list(loaded.classes),
            "image_column": data.image,
            "label_column": data.label,
            "pictures": picture_format.as_dict(),
            MASK_NETWORK: network.as_dict(),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data={**loaded.report.as_dict(), "classes": list(loaded.classes)},
        fingerprints=loaded.fingerprints,
        messages=loaded.report.warnings,
    )


def _loss(recipe: Recipe, settings: MaskSettings) -> str | Loss:
    """Return the recipe's loss, with that of the auxiliary head where there is one."""
    from snugfit.kit.auxiliary_loss import WithAuxiliary

    if recipe.loss == "cross_entropy":
        return WithAuxiliary(settings.auxiliary)
    return loss_of(recipe)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.data.examples import FILE, Examples
    from snugfit.data.masks import PicturesWithMasks, collate, load_mask_rows
    from snugfit.data.picture_format import PictureFormat
    from snugfit.kit.auxiliary_loss import WithAuxiliary
    from snugfit.models.bundle import MASK_NETWORK

    image, picture_format = meta["image_column"], PictureFormat.of(meta["pictures"])

    def encoded(rows: Sequence[Row]) -> MapStyle:
        given = [{FILE: row[image] if isinstance(row, Mapping) else row} for row in rows]
        return PicturesWithMasks(Examples(given, "the rows", range(len(given))), picture_format)

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
        loss=WithAuxiliary(meta[MASK_NETWORK]["settings"]["auxiliary"]),
        metrics=CARD.metrics,
    )


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


def _saved(prediction: Prediction, folder: Path, name: str) -> Prediction:
    """Write a mask into a folder; return the prediction with its file's name there."""
    from PIL import Image

    file = f"{name}.png"
    Image.fromarray(prediction[_PREDICTION]).save(folder / file)
    return {_PREDICTION: file}


def _read_rows(recipe: Recipe) -> Part:
    from snugfit.data.masks import read_masks

    data = recipe.data
    loaded = read_masks(
        data.rows,
        "data.train",
        image=data.image,
        label=data.label,
        folder=recipe.folder,
        classes=None if data.classes is None else len(data.classes),
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
        reason=f"{len(source.rows):,} pictures, each with a mask {'of its name' if of_folder else f'in column {label!r}'}",
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
    settings=("image", "label", "classes", "size", "augment", "bad_rows"),
    load=_load,
    inference=_inference,
    networks=NETWORKS,
    model="masks",
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder with folders of images and of masks, or a file of rows with paths of both",
    new_rows="PICTURES",
    pipeline="image-segmentation",
)
