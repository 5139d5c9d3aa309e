"""Classes of sounds, learned from a folder for each class, or from rows with a path and a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError
from snugfit.tasks.common.file_use import use_of_files
from snugfit.tasks.inference import Inference
from snugfit.tasks.recipe_model import load_from, source_files, trained_already
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card
from snugfit.units import counted, parse_bytes

if TYPE_CHECKING:
    from snugfit.data.examples import Examples
    from snugfit.data.files.file_rows import MapStyle
    from snugfit.data.sounds.sound_format import SoundFormat
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_LABELS = ("label", "labels", "class", "category", "target", "y")


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.data.files.labelled_files import collate
    from snugfit.data.sounds.feature_cache import FeatureCache
    from snugfit.data.sounds.labelled_sounds import SoundSettings, load_sounds
    from snugfit.data.sounds.sound_format import sound_format_of
    from snugfit.models.huggingface import PICTURES, SOUNDS, hears_sounds, input_settings, load_classifier
    from snugfit.step.build import Material

    data, folder = recipe.data, recipe.folder
    config, processor = input_settings(recipe.model, from_scratch=recipe.from_scratch, folder=folder)
    of_sounds = hears_sounds(config)
    sound_format = sound_format_of(config, processor, recipe.model, data.seconds, of_sounds=of_sounds)
    settings = SoundSettings(
        train=data.rows,
        validation=data.held_out,
        audio=data.audio,
        label=data.label,
        augment=None if data.augment_audio is None else tuple(data.augment_audio),
        bad_rows=data.bad_rows,
        seed=recipe.train.seed,
        leaks=data.leak_settings,
    )
    size = data.feature_cache
    features = None if size is None else FeatureCache(sound_format, parse_bytes(size, "data.feature_cache"))
    sounds = load_sounds(settings, sound_format, folder=folder, features=features)
    of = SOUNDS if of_sounds else PICTURES
    load = partial(load_classifier, labels=sounds.labels, of=of, folder=folder, empty=empty)
    _check_features(recipe, sound_format, of)
    loaded = load_from(recipe, load, keep)
    return Task(
        Material(
            loaded.model,
            sounds.train,
            sounds.validation,
            loss_of(recipe),
            collate,
            load=lambda name: trained_already(load(name), name),
        ),
        meta={
            "task": recipe.task,
            "labels": list(sounds.labels),
            "audio_column": data.audio,
            "label_column": data.label,
            "sounds": sound_format.as_dict(),
            "augment": list(sounds.augment),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=sounds.report.as_dict(),
        fingerprints=sounds.fingerprints,
        sources=source_files(recipe),
        messages=(*sounds.report.warnings, *loaded.messages),
        processor=sound_format.extractor,
        example_rows=sounds.example_rows,
    )


def _check_features(recipe: TaskRecipe, sound_format: SoundFormat, of: str) -> None:
    """See that the model takes what its feature extractor makes.

    Raises:
        ModelError: it does not.
    """
    import numpy as np
    import torch

    from snugfit.models.huggingface import load_classifier

    if sound_format.hears_waves:  # of any length
        return
    model = load_classifier(recipe.model, ("0", "1"), of=of, folder=recipe.folder, empty=True).model
    silence = np.zeros(sound_format.samples, dtype=np.float32)
    features = sound_format.inputs_of(sound_format.features(silence))[sound_format.input_name]
    try:
        model(torch.zeros(1, *features.shape, device="meta"))
    except (ValueError, RuntimeError) as error:
        raise ModelError(
            "model",
            f"{recipe.model} does not take features of shape {tuple(features.shape)}, as its preprocessor_config.json and data.seconds make them: "
            f"{str(error).partition(chr(10))[0]}",
            "Bring that file and config.json into line.",
        ) from error


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.core.losses import cross_entropy
    from snugfit.data.sounds.labelled_sounds import Sounds
    from snugfit.data.sounds.sound_files import SOUND_FILES
    from snugfit.data.sounds.sound_format import SoundFormat
    from snugfit.tasks.common.classes import most_likely

    labels, augment = tuple(meta["labels"]), meta.get("augment") or ()
    sound_format = SoundFormat.of(meta["sounds"])

    def decoded(rows: Examples, augment: Sequence[str] = ()) -> MapStyle:
        return Sounds(rows, sound_format, augment)

    return use_of_files(
        SOUND_FILES,
        meta["audio_column"],
        decoded,
        label=meta["label_column"],
        drawn=partial(decoded, augment=augment) if augment else None,
        classes=labels,
        decode=partial(most_likely, labels),
        columns=("prediction", "probability"),
        loss=cross_entropy,
        metrics=CARD.metrics,
    )


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.files.path_rows import rows_of_files
    from snugfit.data.sounds.sound_files import SOUND_FILES

    data, folder = recipe.data, recipe.folder
    return rows_of_files(
        SOUND_FILES, data.rows, "data.train", column=data.audio, label=data.label, folder=folder
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    audio = data.get("audio") or next(filter(source.names_sounds, source.columns), None)
    label = data.get("label") or source.named(_LABELS) or source.repeated(audio)
    if audio is None or label is None or not source.names_sounds(audio):
        return None
    classes = source.classes(label)
    of_folder = source.in_folders
    where = "one folder each" if of_folder else f"in column '{label}'"
    return Recognition(
        data={} if of_folder else {"audio": audio, "label": label},
        reason=f"{counted(len(source.rows), 'sound')}, {counted(len(classes), 'class')}, {where}",
        score=0.9,
        examples=len(source.rows),
        comments={"data.train": f"{len(classes):,} classes of {source.class_sizes(label)} sounds each"},
    )


CARD = Card(
    name="audio-classification",
    summary="Tell which class a sound is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=("audio", "label", "seconds", "augment_audio", "feature_cache", "bad_rows"),
    load=_load,
    classes=True,
    inference=_inference,
    model="sounds",
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a folder of sounds with a folder for each class, or a file of rows with their paths",
    new_rows="SOUNDS",
    pipeline="audio-classification",
)
