"""Classes of pictures, learned from a folder for each class, or from rows with a path and a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import SettingError
from snugfit.tasks.inference import Inference, Row
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card
from snugfit.tasks.texts import source_files, trained_already

if TYPE_CHECKING:
    from snugfit.data.file_rows import MapStyle
    from snugfit.data.picture_format import PictureFormat
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.models.huggingface import LoadedModel
    from snugfit.recipe import Recipe

_LABELS = ("label", "labels", "class", "category", "target", "y")


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.picture_format import format_of
    from snugfit.data.pictures import PictureSettings, collate, load_pictures
    from snugfit.models.huggingface import PICTURES, input_settings, load_classifier
    from snugfit.step.build import Material

    data, folder = recipe.data, recipe.folder
    config, processor = input_settings(recipe.model, from_scratch=recipe.from_scratch, folder=folder)
    picture_format = format_of(config, processor, recipe.model).with_side(data.size)
    settings = PictureSettings(
        train=data.rows,
        validation=data.held_out,
        image=data.image,
        label=data.label,
        augment=tuple(data.augment),
        bad_rows=data.bad_rows,
        seed=recipe.train.seed,
    )
    pictures = load_pictures(settings, picture_format, folder=folder)
    load = partial(load_classifier, labels=pictures.labels, of=PICTURES, folder=folder, empty=empty)
    loaded: LoadedModel = load(
        recipe.model,
        seed=recipe.train.seed,
        from_scratch=recipe.from_scratch,
        techniques=recipe.all_techniques(),
        keep=keep,
    )
    if data.size is not None and config.get("image_size") not in (None, data.size, [data.size] * 2):
        _check_size(recipe, picture_format)
    return Task(
        Material(
            loaded.model,
            pictures.train,
            pictures.validation,
            loss_of(recipe),
            collate,
            load=lambda name: trained_already(load(name), name),
        ),
        meta={
            "task": recipe.task,
            "labels": list(pictures.labels),
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


def _check_size(recipe: Recipe, picture_format: PictureFormat) -> None:
    """See that the model takes pictures of another size than its configuration names, as convolutions do.

    Raises:
        SettingError: it does not.
    """
    import torch

    from snugfit.models.huggingface import PICTURES, load_classifier

    model = load_classifier(recipe.model, ("0", "1"), of=PICTURES, folder=recipe.folder, empty=True).model
    try:
        model(torch.zeros(1, *picture_format.shape, device="meta"))
    except (ValueError, RuntimeError) as error:
        raise SettingError(
            "data.size",
            f"{recipe.data.size} is no size that {recipe.model} takes: {str(error).partition(chr(10))[0]}",
            "Leave it out; from scratch, write image_size into the model's config.json.",
        ) from error


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.data.examples import FILE, Examples
    from snugfit.data.file_rows import FileRows
    from snugfit.data.picture_format import PictureFormat
    from snugfit.data.pictures import Pictures, collate, load_picture_rows
    from snugfit.tasks.classes import most_likely

    labels, image = tuple(meta["labels"]), meta["image_column"]
    picture_format = PictureFormat.of(meta["pictures"])

    def encoded(rows: Sequence[Row]) -> MapStyle:
        given = [{FILE: row[image] if isinstance(row, Mapping) else row} for row in rows]
        return Pictures(Examples(given, "the rows", range(len(given))), picture_format)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_picture_rows(
            source,
            picture_format,
            image=image,
            label=meta["label_column"] if labelled else None,
            labels=labels if labelled else (),
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    augment = meta.get("augment") or ()
    return Inference(
        encode=encoded,
        collate=collate,
        view=partial(_view, augment) if augment else None,
        decode=partial(most_likely, labels),
        columns=("prediction", "probability"),
        read=read,
        classes=labels,
        loss=cross_entropy,
        metrics=CARD.metrics,
    )


def _view(augment: Sequence[str], pictures: Any, number: int) -> MapStyle:
    from snugfit.data.drawn_view import DrawnView
    from snugfit.data.pictures import Pictures

    return DrawnView(Pictures(pictures.rows, pictures.format, augment), number)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    image = data.get("image") or next(filter(source.names_pictures, source.columns), None)
    label = data.get("label") or source.named(_LABELS) or source.repeated(image)
    if image is None or label is None or not source.names_pictures(image):
        return None
    classes = source.classes(label)
    columns = {} if source.path.is_dir() else {"image": image, "label": label}
    where = "one folder each" if source.path.is_dir() else f"in column '{label}'"
    return Recognition(
        data={**columns, "augment": ["crop", "flip"]},
        reason=f"{len(source.rows):,} pictures, {len(classes):,} classes, {where}",
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
    settings=("image", "label", "size", "augment", "bad_rows"),
    load=_load,
    classes=True,
    inference=_inference,
    model="pictures",
    recognize=_recognize,
    rows="a folder of pictures with a folder for each class, or a file of rows with their paths",
    new_rows="PICTURES",
    pipeline="image-classification",
)
