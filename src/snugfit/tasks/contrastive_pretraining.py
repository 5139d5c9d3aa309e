"""An encoder of pictures, learned without labels: two views of a picture are put near each other, and away from those of all other pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.pictures import PICTURE_ROWS, picture_settings, read_picture_rows
from snugfit.tasks.recipe_model import load_from, source_files
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.file_rows import FileRows, MapStyle
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe

_WIDTH = 64
"""Of the projection that the loss compares."""


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.picture_format import format_of
    from snugfit.data.picture_pairs import collate_pairs, load_picture_pairs
    from snugfit.models.huggingface import PICTURES, input_settings, load_classifier
    from snugfit.models.pair_encoder import FEATURES, PairEncoder
    from snugfit.step.build import Material

    data, folder, seed = recipe.data, recipe.folder, recipe.train.seed
    config, processor = input_settings(recipe.model, from_scratch=recipe.from_scratch, folder=folder)
    picture_format = format_of(config, processor, recipe.model).with_side(data.size)
    pairs = load_picture_pairs(picture_settings(recipe, None), picture_format, folder=folder)
    load = partial(load_classifier, labels=FEATURES, of=PICTURES, folder=folder, empty=empty)
    loaded = load_from(recipe, load, keep)
    model = PairEncoder(loaded.model, recipe.model, _WIDTH, seed, empty=empty)
    return Task(
        Material(model, pairs.train, pairs.validation, loss_of(recipe), collate_pairs),
        meta={
            "task": recipe.task,
            "image_column": data.image,
            "pictures": picture_format.as_dict(),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=pairs.report.as_dict(),
        fingerprints=pairs.fingerprints,
        sources=source_files(recipe),
        # the head is taken out, so that what is drawn for it is nothing to say
        messages=(*pairs.report.warnings, *(each for each in loaded.messages if "the head" not in each)),
        processor=picture_format.processor(),
        example_rows=pairs.example_rows,
        delivered=_encoder,
    )


def _encoder(model: nn.Module) -> nn.Module:
    """Return what is delivered of the model: all but the projection."""
    from snugfit.models.pair_encoder import PairEncoder

    return model.encoder if isinstance(model, PairEncoder) else model


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.data.examples import FILE, Examples
    from snugfit.data.picture_format import PictureFormat
    from snugfit.data.pictures import Pictures, collate, load_picture_rows

    image, picture_format = meta["image_column"], PictureFormat.of(meta["pictures"])

    def encoded(rows: Sequence[Row]) -> MapStyle:
        given = [{FILE: row[image] if isinstance(row, Mapping) else row} for row in rows]
        return Pictures(Examples(given, "the rows", range(len(given))), picture_format)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        if labelled:
            raise ModelError(
                "model",
                f"it was pretrained ({CARD.name}), and the projection that its loss compares is not delivered",
                "Train a classifier on it, and evaluate that: model: RUN/best, with the technique freeze for a linear probe.",
            )
        read_rows = partial(load_picture_rows, image=image, label=None, labels=(), bad_rows=bad_rows)
        return read_rows(source, picture_format, folder=Path.cwd())

    return Inference(
        encode=encoded,
        collate=collate,
        forward=_features,
        decode=_embeddings,
        columns=("embedding",),
        read=read,
    )


def _features(model: nn.Module, data: Mapping[str, Any]) -> Any:
    from snugfit.data.pictures import INPUT
    from snugfit.models.pair_encoder import features_of

    return {"logits": features_of(model, data[INPUT])}


def _embeddings(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    """Return the features of each picture, as a head would see them."""
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    features = read(logits_of(outputs).float(), assume=[[0.0]] * len(examples))
    return [{"embedding": values} for values in features]


def _read_rows(recipe: Recipe) -> Part:
    return read_picture_rows(recipe, None)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    """Return a proposal where pictures are named and nothing else: who has classes rarely wants to go without."""
    image = data.get("image")
    if not isinstance(source, Rows) or image is None or not source.names_pictures(image):
        return None
    return Recognition(
        data={"image": image, "augment": ("crop", "flip", "color")},
        reason=f"{len(source.rows):,} pictures, without labels",
        score=0.2,
        examples=len(source.rows),
        comments={
            "data.augment": "changes that leave what a picture shows: two views of it are to be told as one"
        },
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
    pipeline="image-feature-extraction",
)
