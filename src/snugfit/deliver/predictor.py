"""A model ready for rows: what a run saved as best or the registry holds, loaded, and used as its task uses it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.losses import find_loss, over_batches
from snugfit.core.technique import Context, Technique
from snugfit.data.frames import without_frame
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.kit.language_models.token_scores import in_token_chunks
from snugfit.kit.precision.product_rounding import products_as_chosen
from snugfit.models.bundle import (
    DETERMINISTIC,
    ENTRIES,
    EXTENDED_BY,
    LEARNED_BY,
    LOSS_WEIGHTS,
    META,
    find_bundle,
    load_bundle,
    read_meta,
)
from snugfit.step.build import find_device
from snugfit.step.evaluate import Scored
from snugfit.step.model_checks.input_errors import check_inputs
from snugfit.step.module_modes import eval_mode
from snugfit.system.code_consent import named_code, require
from snugfit.system.rounding import deterministic
from snugfit.system.user_objects import is_python_path, load_object
from snugfit.tasks import discover as discover_tasks
from snugfit.tasks import import_again, known
from snugfit.tasks.common.classes import in_detail
from snugfit.tasks.inference import Inference
from snugfit.tasks.task import named_loss
from snugfit.tasks.task_card import Card
from snugfit.techniques import discover, find
from snugfit.techniques.plugins import check_technique

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from snugfit.core.loss_terms import Loss
    from snugfit.data.files.file_rows import MapStyle
    from snugfit.kit.streaming.weight_stream import WeightStream
    from snugfit.step.step import Forward

BATCH_ROWS = 32


@dataclass(frozen=True)
class Predictor:
    """A trained model ready for rows, under the numerics it was trained in.

    Args:
        meta: what it was saved with.
        use: how its task uses it; None where the task predicts nothing.
        forward: how it is called with a batch, where that is not as its task does.
        source: where it comes from.
        rows: that are put through it at once.
        stream: brings those of its weights that are not on the device.
    """

    model: nn.Module
    meta: Mapping[str, Any]
    tokenizer: PreTrainedTokenizerBase | None
    device: torch.device
    use: Inference | None
    forward: Forward | None = None
    source: str = "the model"
    rows: int = BATCH_ROWS
    stream: WeightStream | None = None

    @property
    def inference(self) -> Inference:
        """The use that its task makes of it.

        Raises:
            ModelError: the task predicts nothing.
        """
        card = known(self.meta.get("task"))
        if self.use is None and card is not None and card.inference is not None:
            raise ModelError(self.source, "has no tokenizer, which predictions need", "Put its files back.")
        if self.use is None:
            able = [name for name, each in discover_tasks().items() if each.inference is not None]
            raise ModelError(
                self.source,
                f"holds a model for the task '{self.meta.get('task')}', and those that predict are of {' and '.join(able)}",
                "Take its module in Python: snugfit.load(folder).model",
            )
        return self.use

    def in_detail(self, top: int = 1, proba: bool = False) -> Predictor:
        """Return the same with more in its predictions.

        Args:
            top: so many classes of each row, the likeliest first.
            proba: the probability of each class too.
        Raises:
            ModelError: it predicts no classes.
            SettingError: `top` is not positive, or classes are not one against the other.
        """
        if top == 1 and not proba:
            return self
        if top < 1:
            raise SettingError("top", f"got {top}", "Give a positive number of classes.")
        if top > 1 and self.inference.any_number:
            raise SettingError(
                "top",
                f"got {top}, and a row has any number of labels",
                "Leave it out: each row comes with the probability of every label.",
            )
        if not self.inference.classes:
            raise ModelError(
                self.source,
                f"is of the task '{self.meta.get('task')}', whose predictions are no named classes with probabilities",
                "Leave out top and proba.",
            )
        return replace(self, use=in_detail(self.inference, top=top, every=proba))

    @property
    def loss(self) -> Loss | None:
        """The loss that it is scored by; None where that is not known.

        Raises:
            SettingError: it is the user's own, and cannot be imported.
        """
        use = self.inference
        return use.loss if use.own_loss is None else use.own_loss()

    def by_loss(self, loss: str | Loss) -> Predictor:
        """Return the same scored by a loss: a built-in one by its name, or one of the user's own."""
        use = replace(self.inference, loss=find_loss(loss), own_loss=None)
        return replace(
            self, use=use, meta={key: value for key, value in self.meta.items() if key != LEARNED_BY}
        )

    def by_own_loss(self) -> Predictor:
        """Return the same scored by the loss that the model learned by, where that is the user's own and its task is scored by another.

        Raises:
            SettingError: it cannot be imported.
        """
        name = self.meta.get(LEARNED_BY)
        if name is None:
            return self
        return self.by_loss(named_loss(name, self.meta.get(LOSS_WEIGHTS), Path.cwd()))

    def with_beams(self, num_beams: int) -> Predictor:
        """Return the same with so many texts gone on with at once, of which the likeliest is given; 1 is as it is.

        Raises:
            ModelError: it writes no texts.
            SettingError: the number is not positive.
        """
        if num_beams == 1:
            return self
        use = self.inference
        if use.with_generation is None or use.generation is None:
            raise ModelError(
                self.source,
                f"is of the task '{self.meta.get('task')}', whose models write no texts to look for with beams",
                "Leave out num_beams.",
            )
        return replace(self, use=use.with_generation(replace(use.generation, num_beams=num_beams), None))

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a prediction for each row, in order, such as the label's name and its probability; of series the steps after them.

        Raises:
            DataError: there are no rows by index, or a row is no mapping of columns.
        """
        card, rows = known(str(self.meta.get("task"))), without_frame(rows)
        if isinstance(rows, (str, os.PathLike, Mapping)) or not hasattr(rows, "__getitem__"):
            raise DataError(
                "rows",
                f"got a {type(rows).__name__}, expected rows",
                "Give a list of them, also of one. The rows of a file are predicted by: snugfit predict RUN FILE -o OUT",
            )
        for number, row in enumerate(rows if card is not None and card.reads_texts else (), 1):
            if not isinstance(row, Mapping):
                raise DataError(
                    "rows",
                    f"row {number} is {type(row).__name__}, and a row has its columns by name",
                    'Give mappings, such as {"text": …}, or a data frame of pandas.',
                )
        predictions = self.predict_examples(self.inference.encode(rows))
        return [each for prediction in predictions for each in self.unfolded(prediction)]

    def predict_plain(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predict as `predict` does, in texts, numbers and bytes, as a model registry keeps them."""
        plain, predictions = self.inference.plain, self.predict(rows)
        return predictions if plain is None else list(map(plain, predictions))

    def unfolded(self, prediction: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the rows that the prediction of one example becomes."""
        unfolded = self.inference.unfolded
        return [prediction] if unfolded is None else unfolded(prediction)

    def predict_examples(
        self, examples: MapStyle, places: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Predict as `predict` does, for rows that are examples of the model already.

        Args:
            places: of them among all, where these are a part: what is drawn is seeded by them.
        """
        places = range(len(examples)) if places is None else places
        predictions: list[dict[str, Any]] = [{}] * len(examples)
        # rows of about one length go together, so that little is padded
        order = sorted(range(len(examples)), key=lambda row: self.inference.length(examples[row]))
        with torch.no_grad(), eval_mode(self.model), products_as_chosen(self.device):
            for start in range(0, len(order), self.rows):
                rows = order[start : start + self.rows]
                part = [examples[row] for row in rows]
                outputs = self._outputs(Batch.of(self.inference.collate(part)), [places[row] for row in rows])
                for row, prediction in zip(rows, self.inference.decode(outputs, part), strict=True):
                    predictions[row] = prediction
        return predictions

    def scored(self) -> Scored:
        """Return the model with the loss of its task, to be evaluated under the numerics it was trained in."""
        loss = self.loss
        assert loss is not None
        run, batch_loss = in_token_chunks(self.model, loss, self._run, over_batches(loss))
        return Scored(self.model, self.device, run, batch_loss, self._around)

    def _outputs(self, batch: Batch, places: Sequence[int]) -> Any:
        batch, run = batch.to(self.device), self.inference.run
        with self._around(batch):
            return self._run(batch) if run is None else run(self.model, batch.data, places)

    def _run(self, batch: Batch) -> Any:
        forward = self.forward or (None if self.use is None else self.use.forward)
        if forward is not None:
            return forward(self.model, batch.data)
        args, kwargs = inputs_of(batch.data, self.meta.get(ENTRIES, 0))
        try:
            return self.model(*args, **kwargs)
        except Exception as error:
            check_inputs(error, self.model, args, kwargs)
            raise

    @contextmanager
    def numerics(self, batch: Batch) -> Iterator[None]:
        """Temporarily compute as the run did, with a batch on the device."""
        # on another kind of device an operator may lack the form that the run's device had
        as_in_run = self.meta.get(DETERMINISTIC) == self.device.type
        with deterministic(as_in_run), self._precision(batch):
            yield

    @contextmanager
    def _around(self, batch: Batch) -> Iterator[None]:
        """Temporarily compute as in `numerics`, with those weights coming that are not on the device."""
        streaming = nullcontext() if self.stream is None else self.stream.running()
        with self.numerics(batch), streaming:
            yield

    def _precision(self, batch: Batch) -> AbstractContextManager[Any]:
        entry = self.meta.get("numerics", "fp32")
        if entry == "fp32":
            return nullcontext()
        ((name, settings),) = {entry: {}}.items() if isinstance(entry, str) else entry.items()
        forward = _made(name, settings, "numerics").seams(Context(self.model, self.device)).forward
        return nullcontext() if forward is None else forward(batch)


def load_predictor(
    folder: str | os.PathLike[str],
    device: str = "auto",
    *,
    model: nn.Module | None = None,
    allow_code: bool = False,
) -> Predictor:
    """Load a bundle for prediction.

    Args:
        model: takes the weights, where they are of a module made in Python.
        allow_code: consent to run what the bundle names as `package.module:function`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: the bundle is damaged.
    """
    meta = read_meta(find_bundle(Path(folder)))
    require(named_code({"task": meta.get("task")}), Path(folder) / META, folder=None, allowed=allow_code)
    card = _card(meta, folder)
    if model is None and card is not None and card.make_model is not None:
        entries = meta.get(EXTENDED_BY) or ()
        require(named_code({EXTENDED_BY: entries}), Path(folder) / META, folder=None, allowed=allow_code)
        model = extended(card.make_model(meta), entries)
    model, meta, tokenizer = load_bundle(
        Path(folder), model=model, search=Path.cwd(), extend=extended, allow_code=allow_code
    )
    return predictor_of(model, meta, tokenizer, device, folder)


def _card(meta: Mapping[str, Any], source: str | os.PathLike[str]) -> Card | None:
    """Return the card of the task that a model was trained for; None where there is none of that name.

    Raises:
        ModelError: it is one of the user's own, and cannot be imported here.
    """
    name = meta.get("task") or ""
    if not is_python_path(name):
        return known(name)
    try:
        return import_again(name, Path.cwd())
    except SettingError as error:
        raise ModelError(
            source,
            f"is of the task '{name}', which cannot be used here: {error.problem}",
            "Call it in the folder that has its package, or install that.",
        ) from error


def predictor_of(
    model: nn.Module,
    meta: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase | None,
    device: str,
    source: str | os.PathLike[str],
) -> Predictor:
    """Return a model ready for rows, as its task uses it.

    Args:
        meta: what it was saved with, or would be.
        source: where it comes from, for messages.
    """
    card, torch_device = _card(meta, source), torch.device(find_device(device))
    ready = card is not None and (not card.reads_texts or tokenizer is not None)
    use = (
        card.inference(meta, tokenizer) if card is not None and ready and card.inference is not None else None
    )
    return Predictor(model.to(torch_device).eval(), meta, tokenizer, torch_device, use, source=str(source))


def extended(model: nn.Module, entries: Sequence[Mapping[str, Mapping[str, Any]]]) -> nn.Module:
    """Return the model as these techniques change its modules."""
    for entry in entries:
        for name, settings in entry.items():
            model = _made(name, settings).prepare(model)
    return model


def _made(name: str, settings: Mapping[str, Any], setting: str = "techniques") -> Technique:
    """Return the technique of an entry as JSON has it; to import one of the user's own was consented to when the bundle was loaded."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    if not is_python_path(name):
        return find(name, setting)(**values)
    technique_class = load_object(name, setting=setting, folder=Path.cwd())
    return check_technique(technique_class, name, setting, discover())(**values)
