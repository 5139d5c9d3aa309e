"""The model of a new recipe: one that is here, or a small one that is written, with the optimizer for it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snugfit.data.texts.chat_template import CHATML, TURN_MARKS
from snugfit.data.texts.conversations import texts_in, texts_of_turns
from snugfit.errors import MissingExtra, ModelError, SettingError
from snugfit.recipe.presets import DEFAULT, find_preset
from snugfit.tasks.recognition import Rows, columns_of
from snugfit.tasks.task_card import Card
from snugfit.tools.init.local_models import LocalModel, choose_model
from snugfit.tools.init.source import Source, Tell, find_model

SCRATCH_PRESET = "from_scratch"
_EPOCHS_FROM_SCRATCH = 20
"""A network for pictures that begins from nothing has to see each of them often."""
_SMALL_SIDE = 64
_HEADERS, _LONGEST, _SLACK = 64, 10.0, 0.02
"""Sounds whose length is looked at, the most seconds of a small model, and what is cut off rather than to hear half a second more."""

_OF_LIBRARIES = ("torchvision/", "config:torchvision/", "config:timm/")
"""Beginnings of names of models that no file here describes."""

_EPOCHS_OF_TABLES = 200
_EPOCHS_OF_SERIES, _BATCH_OF_SERIES = 50, 64


def put_model(
    tree: dict[str, Any],
    comments: dict[str, str],
    card: Card,
    place: Source,
    model: LocalModel | None,
    given: Mapping[str, Any],
    writes: list[Callable[[], list[Path]]],
    folder: Path,
    tell: Tell,
    *,
    there: bool = False,
) -> str:
    """Put a model that can be had into the settings, or have a small one written, unless it is `there`; return where it comes from."""
    if card.model == "table":
        return _put_network(tree, comments, card, given)
    named = str(given.get("model", ""))
    if named.startswith(_OF_LIBRARIES) or (card.model == "masks" and named and not card.makes(named)):
        return _put_named(tree, comments, named)
    if card.model == "masks":
        return _put_mask_network(tree, comments, given)
    if card.model == "series":
        return _put_series_network(tree, comments, given)
    if find_spec("transformers") is None:
        raise MissingExtra("transformers", _EXTRAS.get(card.model, "text"))
    if "model" in given:
        model = find_model(str(given["model"]).removeprefix("config:"))
        if model is None:
            raise ModelError("model", f"{given['model']} is no model", "Name a folder or a name of the hub.")
    elif model is None:
        model = choose_model(folder, card.model, card.architectures)
    if model is not None and not model.serves(card.model):
        raise ModelError(
            "model",
            f"{model.name} {_SERVES_AS[model.kind]}, and {card.name} needs {_NEEDED[card.model]}",
            "Name another, or leave it out: a small one is made from scratch.",
        )
    if not card.reads_texts:
        return _put_picture_or_sound_model(tree, comments, card, place, model, writes, folder, there=there)
    if model is not None and model.weights and not model.tokenizer:
        raise ModelError(
            "model",
            f"{model.folder} has weights and no tokenizer",
            "Save the tokenizer there, with save_pretrained.",
        )
    if model is not None:
        tree["data"]["max_length"] = min(tree["data"]["max_length"], model.positions)
    if model is not None and model.tokenizer:
        return _put_local(tree, comments, model, folder)
    new = _new_folder(tree, folder, there=there)
    origin = (
        f"a small model from scratch, with a tokenizer learned from these rows; no pretrained {_WANTED[card.model]} is here"
        if model is None
        else f"the architecture {model.origin} from scratch, with a tokenizer learned from these rows"
    )
    comments["model"] = _capital(origin)
    assert isinstance(place.content, Rows)
    columns = columns_of(tree["data"].get("text", place.content.columns))
    data = tree["data"]
    further = ("pair", "completion", "target")
    more = [column for name in further for column in columns_of(data.get(name, ()))]
    columns = (*columns, *more, *data.get("answers", ()))
    form = data.get("format")
    spoken = [
        text for row in place.content.rows for each in columns for text in texts_of_turns(row.get(each))
    ]
    turn_marks: tuple[str, ...] = ()
    if form is None and not spoken:
        texts = _texts(place.content, columns)
    else:
        turn_marks = TURN_MARKS
        data["template"] = CHATML
        comments["data.template"] = (
            "the way in which turns are written; a model with a chat template of its own needs none"
        )
        plain = [] if form else _texts(place.content, columns)
        texts = [*plain, *(spoken if form is None else _turns_in(place.content, form))]
    architecture = None if model is None else model.folder

    def write() -> list[Path]:
        from snugfit.models.small import write_small_model

        tell("learning a tokenizer from the rows …")
        write_small_model(new, texts, kind=card.model, architecture=architecture, turn_marks=turn_marks)
        return [new]

    writes.append(write)
    learn(tree, comments, SCRATCH_PRESET)
    return origin


def _put_network(tree: dict[str, Any], comments: dict[str, str], card: Card, given: Mapping[str, Any]) -> str:
    """Put a network for tables into the settings; return what it is."""
    tree["model"] = str(given.get("model", "tabm"))
    tree["train"]["epochs"] = _EPOCHS_OF_TABLES
    tree["early_stopping"] = {"patience": 20}
    if card.classes:
        tree["evaluate"]["best"] = "loss"
    learn(tree, comments, SCRATCH_PRESET)
    tree["optimizer"] = {"adamw": {"learning_rate": 2e-3, "weight_decay": 3e-4}}
    tree["schedule"] = None
    tree["techniques"] = []
    comments["optimizer"] = "as the authors of TabM train it; others: snugfit techniques"
    comments["schedule"] = "the learning rate stays as it is, and the best weights are kept"
    comments["early_stopping.patience"] = "evaluations without a better one, after which the run ends"
    comments["model"] = "many small networks in one; mlp is one of them, a JSON file has its settings"
    return "a network for tables, with new weights"


def _turns_in(rows: Rows, form: str) -> list[str]:
    return [text for row in rows.rows for text in texts_in(row, form)]


def _put_series_network(tree: dict[str, Any], comments: dict[str, str], given: Mapping[str, Any]) -> str:
    """Put a network for series into the settings; return what it is."""
    tree["model"] = str(given.get("model", "tide"))
    tree["train"] = {"epochs": _EPOCHS_OF_SERIES, "global_batch": _BATCH_OF_SERIES}
    tree["early_stopping"] = {"patience": 5}
    learn(tree, comments, SCRATCH_PRESET)
    tree["optimizer"] = {"adamw": {"learning_rate": 1e-3, "weight_decay": 1e-4}}
    tree["schedule"] = None
    tree["techniques"] = [{"clip_norm": {"max_norm": 1.0}}]
    tree["data"]["validation"] = (
        max(tree["data"]["validation"], 0.2) if _is_part(tree) else tree["data"]["validation"]
    )
    if _is_part(tree):
        comments["data.validation"] = (
            "the last part of each series, in whole horizons; none of it is trained on"
        )
    comments["schedule"] = "the learning rate stays as it is, and the best weights are kept"
    comments["early_stopping.patience"] = "evaluations without a better one, after which the run ends"
    comments["optimizer"] = "a usual rate of small networks; others: snugfit techniques"
    comments["model"] = "residual layers over a window; a JSON file has its settings"
    return "a network for series, with new weights"


def _put_named(tree: dict[str, Any], comments: dict[str, str], model: str) -> str:
    """Put a model into the settings that is found by its name when the recipe is run; return where it comes from."""
    scratch = model.startswith("config:")
    tree["model"] = model
    learn(tree, comments, SCRATCH_PRESET if scratch else DEFAULT)
    if scratch:
        tree["train"]["epochs"] = _EPOCHS_FROM_SCRATCH
    origin = "its architecture, with new weights" if scratch else "with the weights that it comes with"
    comments["model"] = _capital(origin)
    return origin


def _put_mask_network(tree: dict[str, Any], comments: dict[str, str], given: Mapping[str, Any]) -> str:
    """Put a network for masks into the settings; return what it is."""
    tree["model"] = str(given.get("model", "unet"))
    tree["train"] = {"epochs": _EPOCHS_FROM_SCRATCH, "global_batch": min(tree["train"]["global_batch"], 16)}
    learn(tree, comments, SCRATCH_PRESET)
    comments["model"] = "a U-Net with an auxiliary head; a JSON file has its settings"
    return "a network for masks, with new weights"


def _is_part(tree: Mapping[str, Any]) -> bool:
    """Return whether a part of the rows is set aside, and not a file."""
    return isinstance(tree["data"]["validation"], float)


_EXTRAS = {"pictures": "pictures", "sounds": "audio"}
_NEEDED = {
    "encoder": "a model of texts",
    "decoder": "a decoder",
    "encoder-decoder": "an encoder with a decoder",
    "pictures": "a model that sees pictures",
    "sounds": "a model that hears sounds",
}
_WANTED = {
    "encoder": "model of texts",
    "decoder": "language model",
    "encoder-decoder": "model that writes one text after reading another",
}
_SERVES_AS = {
    "encoder": "is an encoder, which predicts no next tokens",
    "decoder": "is a decoder of texts",
    "encoder-decoder": "is an encoder with a decoder",
    "pictures": "sees pictures",
    "sounds": "hears sounds",
}


def _put_local(tree: dict[str, Any], comments: dict[str, str], model: LocalModel, folder: Path) -> str:
    """Put a model that is here into the settings; return where it comes from."""
    name = shown_path(model.folder, folder) if Path(model.name).is_dir() else model.name
    if Path(model.name).is_dir() and not name.startswith((".", os.sep)):
        name = f"./{name}"
    tree["model"] = name
    if not model.weights:
        tree["from_scratch"] = True
    origin = model.origin if model.weights else f"architecture {model.origin}, with new weights"
    comments["model"] = _capital(origin)
    learn(tree, comments, DEFAULT if model.weights else SCRATCH_PRESET)
    return origin


def new_model_folder(name: str, folder: Path) -> Path:
    """Return the folder of a model that is made for the recipe of that name in a folder."""
    return folder / f"{name}-model"


def _new_folder(tree: dict[str, Any], folder: Path, *, there: bool) -> Path:
    """Put the folder of a model that is to be written into the settings, and return it.

    Raises:
        SettingError: it is there already.
    """
    new = new_model_folder(tree["name"], folder)
    if new.exists() and not there:
        raise SettingError(
            new, "exists, and nothing is overwritten", f"Name it: snugfit init … model={new.name}"
        )
    tree["model"], tree["from_scratch"] = f"./{new.name}", True
    return new


@dataclass(frozen=True)
class _Small:
    """A small model from scratch: what writes it into a folder, where it comes from, and what is said of it."""

    write: Callable[[Path], None]
    origin: str
    comment: str


def _put_picture_or_sound_model(
    tree: dict[str, Any],
    comments: dict[str, str],
    card: Card,
    place: Source,
    model: LocalModel | None,
    writes: list[Callable[[], list[Path]]],
    folder: Path,
    *,
    there: bool,
) -> str:
    """Put a model that sees or hears into the settings, or have a small one written; return where it comes from."""
    if model is not None:
        return _put_local(tree, comments, model, folder)
    sounds = card.model == "sounds"
    small = _small_sound_model(tree, place) if sounds else _small_picture_model(tree, comments, card)
    new = _new_folder(tree, folder, there=there)

    def write() -> list[Path]:
        small.write(new)
        return [new]

    writes.append(write)
    learn(tree, comments, SCRATCH_PRESET)
    tree["train"]["epochs"] = _EPOCHS_FROM_SCRATCH
    comments["model"] = f"{_capital(small.origin)}. {small.comment}"
    return small.origin


def _small_picture_model(tree: dict[str, Any], comments: dict[str, str], card: Card) -> _Small:
    """Return a small model that sees pictures, whose size it puts into the settings."""

    def write(folder: Path) -> None:
        from snugfit.models.small import write_small_picture_model

        write_small_picture_model(folder, _SMALL_SIDE, patches=bool(card.architectures))

    comments["data.size"] = "larger shows more of each picture, and takes longer"
    tree["data"]["size"] = _SMALL_SIDE
    network = "transformer of patches" if card.architectures else "residual network"
    other = "google/vit-base-patch16-224-in21k" if card.architectures else "microsoft/resnet-18"
    return _Small(
        write,
        f"a small {network} from scratch; no pretrained model of pictures is here",
        f"One of the hub, such as {other}, needs far fewer pictures",
    )


def _small_sound_model(tree: Mapping[str, Any], place: Source) -> _Small:
    """Return a small model that hears sounds as long as nearly all that are here."""
    seconds = _usual_seconds(place, tree["data"].get("audio"))

    def write(folder: Path) -> None:
        from snugfit.models.small import write_small_sound_model

        write_small_sound_model(folder, seconds)

    return _Small(
        write,
        "a small residual network over spectrograms from scratch; no pretrained model of sounds is here",
        f"It hears {seconds:g} seconds. One of the hub, such as MIT/ast-finetuned-audioset-10-10-0.4593, needs far fewer sounds",
    )


def _usual_seconds(place: Source, column: str | None) -> float:
    """Return a length that nearly all sounds fit in, by the headers of some of them: half a second at least, ten at most."""
    from snugfit.data.sounds.sound_files import seconds_of

    assert isinstance(place.content, Rows)
    path = place.content.path
    base = path if path.is_dir() else path.parent
    paths = [base / str(value) for value in place.content.values(column or place.content.columns[0])]
    lengths = sorted(seconds_of(paths[:: max(1, len(paths) // _HEADERS)]))
    usual = lengths[int(0.94 * (len(lengths) - 1))] if lengths else _LONGEST
    return float(min(_LONGEST, max(0.5, math.ceil(2 * usual - _SLACK) / 2)))


def _texts(rows: Rows, columns: Sequence[str]) -> list[str]:
    cells = (row.get(column) for row in rows.rows for column in columns)
    return [" ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for cell in cells if cell]


def learn(tree: dict[str, Any], comments: dict[str, str], preset: str) -> None:
    """Put the optimizer, the schedule and the techniques of a preset into the settings."""
    values = find_preset(preset)
    tree |= {
        "optimizer": dict(values.optimizer),
        "schedule": dict(values.schedule),
        "techniques": list(values.techniques),
    }
    comments["optimizer"] = f"as preset {preset} has it; others: snugfit techniques"
    comments["schedule"] = "learning rate over the run"
    comments["techniques"] = "further techniques: snugfit techniques"


def shown_path(path: Path, folder: Path) -> str:
    """Return a path as a recipe in a folder writes it: relative where it lies in or below that."""
    relative = os.path.relpath(path, folder)
    return os.path.abspath(path) if relative.startswith("..") else relative


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
