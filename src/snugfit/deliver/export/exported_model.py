"""The model that is exported: as it was scored, with the folder that it lies in and what its run tells of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snugfit.deliver.model_registry import resolve_model
from snugfit.deliver.predictor import Predictor, load_predictor
from snugfit.errors import ModelError, RunFolderError
from snugfit.kit.adapters.adapter_files import CONFIG, LOCAL_PREFIX
from snugfit.kit.language_models.text_embeddings import TextEmbeddings
from snugfit.kit.losses.rescaled import Rescaled
from snugfit.kit.placement import host_copy
from snugfit.models.adapter_bundle import ADAPTER
from snugfit.models.bundle import EXTENDED_BY, find_bundle, is_transformers_model
from snugfit.models.folders import CONFIG_PREFIX
from snugfit.tasks import known
from snugfit.tasks.task_card import Card
from snugfit.tracking.spool import SPOOL_NAME, read_events

_BASE_OF_PEFT = "base_model_name_or_path"
TOKEN_TYPES = "token_type_ids"
"""Input that says of each token which text of a pair it belongs to."""


@dataclass(frozen=True)
class ExportedModel:
    """A trained model that is to be exported.

    Args:
        predictor: the model on the processor, its weights as they were scored.
        bundle: its folder; None where the run wrote nothing.
        run_event: the event with which its run began; empty where there is no run's folder.
    """

    predictor: Predictor
    bundle: Path | None
    run_event: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> nn.Module:
        return self.predictor.model

    @property
    def class_name(self) -> str:
        """The name of the model's class for a reader, to whom it is not said whether that is private."""
        return type(self.model).__name__.lstrip("_")

    @property
    def meta(self) -> Mapping[str, Any]:
        return self.predictor.meta

    @property
    def task(self) -> str:
        return str(self.meta.get("task"))

    @property
    def card(self) -> Card | None:
        """The card of its task, which may be one of the user's own; None where that was not imported."""
        return known(self.task)

    @property
    def kind(self) -> str:
        """The kind of its model as the task's card names it; "python" for a model of one's own."""
        card = self.card
        return "python" if card is None or card.own_code or card.model == "own" else card.model

    @property
    def names_classes(self) -> bool:
        """True where its logits are of named classes, of which a row has one or any number."""
        return (self.card is not None and self.card.classes) or self.names_any_number

    @property
    def names_any_number(self) -> bool:
        """True where it gives each row any number of labels."""
        return self.predictor.use is not None and self.predictor.use.any_number

    @property
    def pipeline(self) -> str:
        """The pipeline of transformers for its task; "" where there is none."""
        return "" if self.card is None else self.card.pipeline

    @property
    def scale(self) -> Rescaled | None:
        """The mean and the deviation of the labels, by which its logits become numbers; None where it predicts no such numbers."""
        use = self.predictor.use
        return use.forward if use is not None and isinstance(use.forward, Rescaled) else None

    @property
    def reads_tokens(self) -> bool:
        """True where its inputs are tokens of texts, of any length."""
        return self.kind in ("encoder", "decoder", "encoder-decoder")

    @property
    def embeds_texts(self) -> bool:
        """True where it puts out an embedding of each text."""
        return self.predictor.use is not None and isinstance(self.predictor.use.forward, TextEmbeddings)

    @property
    def labels_texts(self) -> bool:
        """True where it gives each text, or each pair of texts, one class, labels or one number."""
        return self.kind == "encoder" and (self.names_classes or self.scale is not None)

    @property
    def generates(self) -> bool:
        """True where it answers or goes on with texts."""
        return self.predictor.use is not None and self.predictor.use.with_generation is not None

    @property
    def answers_prompts(self) -> bool:
        """True where it learned answers to prompts, and not texts to go on with."""
        return self.generates and self.card is not None and "completion" in self.card.settings

    @property
    def pair(self) -> str | None:
        """The column of the second text, where the model reads pairs of texts."""
        column = self.meta.get("pair_column")
        return None if column is None else str(column)

    @property
    def reads_token_types(self) -> bool:
        """True where the tokenizer tells the texts of a pair apart by an input of its own, and the model has embeddings of it."""
        names = getattr(self.predictor.tokenizer, "model_input_names", ())
        types = getattr(getattr(self.model, "config", None), "type_vocab_size", 2)
        return self.kind == "encoder" and TOKEN_TYPES in names and types > 1

    @property
    def recipe(self) -> Mapping[str, Any]:
        recipe = self.run_event.get("recipe")
        return recipe if isinstance(recipe, Mapping) else {}

    @property
    def is_of_transformers(self) -> bool:
        """True where transformers alone makes the model again: nothing has changed it."""
        return is_transformers_model(self.model) and not self.changes

    @property
    def changes(self) -> Sequence[Mapping[str, Any]]:
        """The techniques that changed its modules after it was made, as a recipe writes them."""
        return self.meta.get(EXTENDED_BY) or ()

    @property
    def config(self) -> Any:
        """The configuration of transformers."""
        return self.model.config


def is_local(base: str) -> bool:
    """Return whether a model is named as a folder of this machine, whose name says little elsewhere."""
    path = base.removeprefix(CONFIG_PREFIX)
    return path.startswith((".", "/", "~")) or Path(path).is_absolute() or Path(path).exists()


def name_elsewhere(model: str) -> str:
    """Return a model's name as an export has it: a folder of this machine without its place."""
    return f"{LOCAL_PREFIX}{Path(model).name}" if is_local(model) else model


def copy_adapter(subject: ExportedModel, folder: Path) -> None:
    """Copy its adapter, in peft's format, to a folder, where the configuration names the base as it is named elsewhere."""
    assert subject.bundle is not None
    shutil.copytree(subject.bundle / ADAPTER, folder, dirs_exist_ok=True)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    # a base that was made before it was given to peft has no name there
    stored = None if subject.recipe.get("from_scratch") else subject.recipe.get("model")
    if base := config.get(_BASE_OF_PEFT) or stored:
        config[_BASE_OF_PEFT] = name_elsewhere(str(base))
    (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def check_of_transformers(subject: ExportedModel, format: str) -> None:
    """Refuse a model that transformers does not make again.

    Raises:
        ModelError: it is such a one.
    """
    if not subject.is_of_transformers:
        names = ", ".join(next(iter(entry)) for entry in subject.changes)
        what, instead = (
            (
                f"was changed by {names}, which transformers does not do",
                "Take onnx or torch-export, whose graphs have it, or state-dict, whose card says how the model is made.",
            )
            if names
            else (f"is a {subject.class_name}, and no model of transformers", "Take state-dict.")
        )
        raise ModelError("--to", f"{format} holds models of transformers alone, and this one {what}", instead)


def load_subject(source: str | Path, *, uri: str | None = None, allow_code: bool = False) -> ExportedModel:
    """Load a model to export: of a run, a folder or the registry.

    Raises:
        CodeRefused: it names code, without consent.
        ModelError: it is damaged.
        RunFolderError, TrackingError: there is none.
    """
    bundle = find_bundle(resolve_model(source, uri=uri))
    return subject_of(load_predictor(bundle, "cpu", allow_code=allow_code), bundle)


def subject_of(predictor: Predictor, bundle: Path | None) -> ExportedModel:
    """Return a loaded model as the subject of an export; the model itself stays as it is."""
    if predictor.device.type != "cpu":
        predictor = replace(predictor, model=host_copy(predictor.model), device=torch.device("cpu"))
    return ExportedModel(predictor, bundle, {} if bundle is None else _run_event_of(bundle))


def _run_event_of(bundle: Path) -> Mapping[str, Any]:
    """Return the event with which the run of a bundle began; nothing for a bundle by itself."""
    folders = (bundle.parent, bundle.parent.parent)  # best/, or one of models/
    spool = next((each / SPOOL_NAME for each in folders if (each / SPOOL_NAME).is_file()), None)
    if spool is None:
        return {}
    try:
        return next((event for event in reversed(read_events(spool)) if event["event"] == "run"), {})
    except RunFolderError:
        return {}  # the model is whole without its story
