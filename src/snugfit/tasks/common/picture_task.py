"""Pictures with a class, or any number of labels, as tasks learn and use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError
from snugfit.tasks.common.file_use import use_of_files
from snugfit.tasks.common.picture_models import load_pictures_model, meta_of, network_of, picture_format_of
from snugfit.tasks.inference import Inference, Prediction
from snugfit.tasks.recipe_model import load_from, source_files, trained_already
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.units import counted

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.examples import Examples
    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.data.labels.label_sets import LabelSets
    from snugfit.data.pictures.labelled_pictures import PictureSettings
    from snugfit.data.pictures.masked_pictures import MaskedPictureData
    from snugfit.data.pictures.picture_cache import PictureCache
    from snugfit.data.pictures.picture_format import PictureFormat
    from snugfit.data.pictures.picture_pairs import PairData
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.step.build import Material
    from snugfit.step.metrics.metric import RowMetric
    from snugfit.tasks.task_recipe import TaskRecipe

PICTURE_ROWS = ("image", "size", "augment", "picture_cache", "bad_rows")
"""Settings of `data` that tasks on pictures read."""


def picture_settings(recipe: TaskRecipe, label: str | LabelSets | None) -> PictureSettings:
    """Return what tasks on pictures ask of their rows."""
    from snugfit.data.pictures.labelled_pictures import PictureSettings
    from snugfit.data.pictures.pixels import opened

    data, cache = recipe.data, picture_cache_of(recipe)
    return PictureSettings(
        train=data.rows,
        validation=data.held_out,
        image=data.image,
        label=label,
        augment=tuple(data.augment),
        bad_rows=data.bad_rows,
        seed=recipe.train.seed,
        leaks=data.leak_settings,
        decode=opened if cache is None else cache.opened,
    )


def picture_cache_of(recipe: TaskRecipe) -> PictureCache | None:
    """Return the cache of decoded pictures and masks, where a recipe asks for one."""
    from snugfit.data.pictures.picture_cache import PictureCache
    from snugfit.units import parse_bytes

    size = recipe.data.picture_cache
    return None if size is None else PictureCache(parse_bytes(size, "data.picture_cache"))


def read_picture_rows(recipe: TaskRecipe, label: str | LabelSets | None) -> Part:
    """Return the pictures of a recipe that can be used, of which folds are made."""
    from snugfit.data.files.path_rows import rows_of_files
    from snugfit.data.pictures.picture_files import PICTURE_FILES

    data, folder = recipe.data, recipe.folder
    return rows_of_files(
        PICTURE_FILES, data.rows, "data.train", column=data.image, label=label, folder=folder
    )


def labelled_picture_task(
    recipe: TaskRecipe,
    empty: bool,
    keep: KeepPart | None,
    *,
    sets: LabelSets | None = None,
    meta: Mapping[str, Any] | None = None,
    metrics: Mapping[str, RowMetric] | None = None,
) -> Task:
    """Return a model that tells a class, or labels, of each picture, with its rows.

    Args:
        sets: the place of the labels, where a row has any number of them.
        meta: what the task keeps with its model besides.
        metrics: those that the task makes.
    """
    from snugfit.core.selection import picture_technique
    from snugfit.data.files.labelled_files import collate
    from snugfit.data.pictures.labelled_pictures import load_pictures
    from snugfit.models.huggingface import ANY_LABELS
    from snugfit.step.build import Material

    data, folder = recipe.data, recipe.folder
    picture_format = picture_format_of(recipe)
    settings = picture_settings(recipe, data.label if sets is None else sets)
    changing = picture_technique(recipe.all_techniques())
    change = None if changing is None else changing.picture()
    pictures = load_pictures(settings, picture_format, folder=folder, change=change)
    load = partial(
        load_pictures_model,
        labels=pictures.labels,
        problem=None if sets is None else ANY_LABELS,
        folder=folder,
        empty=empty,
    )
    loaded = load_from(recipe, load, keep)
    return Task(
        Material(
            loaded.model,
            pictures.train,
            pictures.validation,
            loss_of(recipe),
            collate,
            load=lambda name: trained_already(load(name), name),
            metrics=metrics or {},
        ),
        meta={
            "task": recipe.task,
            "labels": list(pictures.labels),
            **(meta or {}),
            **meta_of(network_of(loaded.model)),
            "image_column": data.image,
            "label_column": data.label,
            "pictures": picture_format.as_dict(),
            "augment": list(data.augment),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=pictures.report.as_dict(),
        fingerprints=pictures.fingerprints,
        sources=source_files(recipe),
        messages=(*pictures.report.warnings, *loaded.messages),
        processor=picture_format.processor(),
        example_rows=pictures.example_rows,
    )


def labelled_picture_inference(
    meta: Mapping[str, Any],
    decode: Callable[[Any, Sequence[Any]], list[Prediction]],
    columns: tuple[str, ...],
    sets: LabelSets | None = None,
) -> Inference:
    """Return the use of such a model, but for what it is scored by.

    Args:
        sets: the place of the labels, where a row has any number of them.
    """
    from snugfit.data.pictures.labelled_pictures import Pictures
    from snugfit.data.pictures.picture_files import PICTURE_FILES
    from snugfit.data.pictures.picture_format import PictureFormat

    picture_format, augment = PictureFormat.of(meta["pictures"]), meta.get("augment") or ()

    def decoded(rows: Examples, augment: Sequence[str] = ()) -> MapStyle:
        return Pictures(rows, picture_format, augment)

    return use_of_files(
        PICTURE_FILES,
        meta["image_column"],
        decoded,
        label=sets or meta["label_column"],
        drawn=partial(decoded, augment=augment) if augment else None,
        classes=tuple(meta["labels"]),
        mirrored=_mirrored,
        decode=decode,
        columns=columns,
    )


def _mirrored(pictures: Any) -> MapStyle:
    from snugfit.data.pictures.labelled_pictures import Mirrored

    return Mirrored(pictures)


def encoder_task(
    recipe: TaskRecipe,
    material: Material,
    picture_format: PictureFormat,
    data: PairData | MaskedPictureData,
    messages: Sequence[str],
) -> Task:
    """Return an encoder that is learned without labels, of which `encoder` of its model alone is delivered."""
    from snugfit.models.masked_encoder import MaskedEncoder
    from snugfit.models.pair_encoder import PairEncoder

    def delivered(model: nn.Module) -> nn.Module:
        return model.encoder if isinstance(model, MaskedEncoder | PairEncoder) else model

    return Task(
        material,
        meta={
            "task": recipe.task,
            "image_column": recipe.data.image,
            "pictures": picture_format.as_dict(),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=data.report.as_dict(),
        fingerprints=data.fingerprints,
        sources=source_files(recipe),
        messages=(*data.report.warnings, *messages),
        processor=picture_format.processor(),
        example_rows=data.example_rows,
        delivered=delivered,
    )


def encoder_inference(meta: Mapping[str, Any], task: str, left_out: str) -> Inference:
    """Return the use of an encoder that was learned without labels: what a head would see of each picture.

    Args:
        task: that it was learned by.
        left_out: the part that its loss is of, which is not delivered.
    """
    from snugfit.data.pictures.labelled_pictures import Pictures
    from snugfit.data.pictures.picture_files import PICTURE_FILES
    from snugfit.data.pictures.picture_format import PictureFormat

    picture_format = PictureFormat.of(meta["pictures"])
    use = use_of_files(
        PICTURE_FILES,
        meta["image_column"],
        lambda rows: Pictures(rows, picture_format),
        forward=_features,
        decode=_embeddings,
        columns=("embedding",),
    )
    read_pictures = use.read
    assert read_pictures is not None

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        if labelled:
            raise ModelError(
                "model",
                f"it was pretrained ({task}), and {left_out} is not delivered",
                "Train a classifier on it, and evaluate that: model: RUN/best, with the technique freeze for a linear probe.",
            )
        return read_pictures(source, labelled=False, bad_rows=bad_rows)

    return replace(use, read=read)


def recognize_without_labels(
    source: Rows | Script, data: Mapping[str, Any], *, score: float, augment: Sequence[str], comment: str
) -> Recognition | None:
    """Return a proposal to learn from pictures alone: of a folder of them, or of a column that is named.

    Args:
        score: below that of tasks that learn labels, as who has them rarely wants to go without.
        augment: changes of the pictures.
        comment: what they are for.
    """
    if not isinstance(source, Rows):
        return None
    of_folder = source.in_folders and "mask" not in source.columns
    image = data.get("image") or (source.columns[0] if of_folder else None)
    if image is None or not source.names_pictures(image):
        return None
    return Recognition(
        data={**({} if of_folder else {"image": image}), "augment": tuple(augment)},
        reason=f"{counted(len(source.rows), 'picture')}, without labels",
        score=score,
        examples=len(source.rows),
        comments={"data.augment": comment},
    )


def _features(model: nn.Module, data: Mapping[str, Any]) -> Any:
    from snugfit.data.pictures.labelled_pictures import INPUT
    from snugfit.models.pair_encoder import features_of

    return {"logits": features_of(model, data[INPUT])}


def _embeddings(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return the features of each picture, as a head would see them."""
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    features = read(logits_of(outputs).float(), assume=[[0.0]] * len(examples))
    return [{"embedding": values} for values in features]
