"""Predict and evaluate with a bundle: what a run saved as best, or what the registry holds."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.losses import cross_entropy, logits_of, over_batches
from snugfit.core.scalar_reads import read
from snugfit.core.technique import Context, Technique
from snugfit.data.bad_rows import text_of
from snugfit.data.loader import Loader, Order
from snugfit.data.text import TextRows, load_text_rows
from snugfit.data.tokens import encode, padding_for
from snugfit.deliver.model_registry import resolve_model
from snugfit.errors import DataError, ModelError
from snugfit.models.bundle import load_bundle
from snugfit.step.build import find_device
from snugfit.step.evaluate import Scored, eval_mode, evaluate
from snugfit.system.user_objects import is_python_path, load_object
from snugfit.tasks import predictable
from snugfit.techniques import discover, find
from snugfit.techniques.plugins import check_technique

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_ROWS = 32


@dataclass(frozen=True)
class Predictor:
    """A text classifier ready for rows."""

    model: nn.Module
    meta: Mapping[str, Any]
    tokenizer: PreTrainedTokenizerBase
    device: torch.device

    @property
    def labels(self) -> Sequence[str]:
        labels: Sequence[str] = self.meta["labels"]
        return labels

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a prediction (the label's name) and its probability for each row, in order."""
        texts = [text_of(row, self.meta["text_columns"]) for row in rows]
        return self.classify(encode(texts, self.tokenizer, self.meta["max_length"]).examples)

    def classify(self, examples: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As `predict`, for examples that are tokens already."""
        predictions: list[dict[str, Any]] = [{}] * len(examples)
        collate = padding_for(self.tokenizer)
        # rows of about one length go together, so that little is padded
        order = sorted(range(len(examples)), key=lambda row: len(examples[row]["input_ids"]))
        with torch.no_grad(), eval_mode(self.model):
            for start in range(0, len(order), BATCH_ROWS):
                rows = order[start : start + BATCH_ROWS]
                logits = self._logits(Batch.of(collate([examples[row] for row in rows])))
                best = logits.float().softmax(dim=-1).max(dim=-1)
                numbers, values = read(best.indices, assume=[]), read(best.values, assume=[])
                for row, number, value in zip(rows, numbers, values, strict=True):
                    predictions[row] = {"prediction": self.labels[number], "probability": value}
        return predictions

    def scored(self) -> Scored:
        """Return the model with the loss of its task, to be evaluated under the numerics it was trained in."""
        loss = over_batches(cross_entropy)
        return Scored(self.model, self.device, self._run, loss, self._numerics)

    def _logits(self, batch: Batch) -> Tensor:
        batch = batch.to(self.device)
        with self._numerics(batch):
            return logits_of(self._run(batch))

    def _run(self, batch: Batch) -> Any:
        args, kwargs = inputs_of(batch.data)
        return self.model(*args, **kwargs)

    def _numerics(self, batch: Batch) -> AbstractContextManager[Any]:
        entry = self.meta.get("numerics", "fp32")
        if entry == "fp32":
            return nullcontext()
        ((name, settings),) = {entry: {}}.items() if isinstance(entry, str) else entry.items()
        forward = _made(name, settings, "numerics").seams(Context(self.model, self.device)).forward
        return nullcontext() if forward is None else forward(batch)


def load_predictor(
    folder: str | os.PathLike[str], device: str = "auto", *, allow_code: bool = False
) -> Predictor:
    """Load a bundle for prediction.

    Args:
        allow_code: consent to run what the bundle names as `package.module:function`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: the bundle is damaged, or is not a text classifier.
    """
    model, meta, tokenizer = load_bundle(Path(folder), extend=extended, allow_code=allow_code)
    if meta.get("task") not in predictable() or tokenizer is None:
        raise ModelError(
            folder,
            f"holds a model for the task '{meta.get('task')}', and evaluate and predict take {' and '.join(predictable())} "
            "models with their tokenizer",
            "Load this one in Python with snugfit.models.bundle.load_bundle.",
        )
    torch_device = torch.device(find_device(device))
    return Predictor(model.to(torch_device), meta, tokenizer, torch_device)


def extended(model: nn.Module, entries: Sequence[Mapping[str, Mapping[str, Any]]]) -> nn.Module:
    """Return the model with the modules that these techniques add."""
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


_ADDED = ("prediction", "probability", "source_line")


def predict_file(
    source: str | Path,
    data: str,
    output: Path,
    *,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Write the rows of `data` with the columns `prediction`, `probability` and `source_line`, the row's line in `data`, as CSV.

    Args:
        source: the folder of a run or of a model, or the address of a registered one, in the tracker at `uri`.
    Returns:
        Counts: rows, rows left out by reason, and predictions by label.
    Raises:
        DataError: the data cannot be used, or has a column of one of those names.
    """
    predictor = load_predictor(resolve_model(source, uri=uri), allow_code=allow_code)
    rows = _rows(predictor, data, label=None, bad_rows=bad_rows)
    taken = set(_ADDED) & set(rows.columns)
    if taken:
        raise DataError(
            data, f"has a column '{min(taken)}' already", "Rename it: predictions go under that name."
        )
    predictions = predictor.classify(rows.examples)
    _write_csv(output, rows, predictions)
    counts = dict.fromkeys(predictor.labels, 0)
    for prediction in predictions:
        counts[prediction["prediction"]] += 1
    return {
        "output": str(output),
        "rows": len(predictions),
        "skipped": dict(rows.report.skipped),
        "predictions": counts,
        "weights": predictor.meta.get("weights"),
        "update": predictor.meta.get("update"),
    }


def evaluate_file(
    source: str | Path,
    data: str,
    metrics: Sequence[str] = (),
    *,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Return loss and metrics of a model on labelled rows, by default accuracy and macro F1.

    Args:
        source: as of `predict_file`.
    Raises:
        DataError: the data cannot be used; a label not seen in training is a fault of its row.
    """
    predictor = load_predictor(resolve_model(source, uri=uri), allow_code=allow_code)
    rows = _rows(predictor, data, label=predictor.meta["label_column"], bad_rows=bad_rows)
    loader = Loader(rows.examples, Order(len(rows.examples), BATCH_ROWS, shuffle=False), rows.collate)
    values = evaluate(
        predictor.scored(),
        loader.windows(0, loader.order.windows_per_epoch),
        {name: name for name in metrics or ("accuracy", "macro_f1")},
    )
    return {
        "metrics": values,
        "rows": len(rows.examples),
        "skipped": dict(rows.report.skipped),
        "weights": predictor.meta.get("weights"),
        "update": predictor.meta.get("update"),
    }


def _rows(predictor: Predictor, data: str, label: str | None, bad_rows: str) -> TextRows:
    return load_text_rows(
        data,
        predictor.tokenizer,
        text=predictor.meta["text_columns"],
        label=label,
        labels=predictor.labels if label is not None else (),
        max_length=predictor.meta["max_length"],
        bad_rows=bad_rows,
        folder=Path.cwd(),
    )


def _write_csv(output: Path, rows: TextRows, predictions: Sequence[Mapping[str, Any]]) -> None:
    """Write whole or not at all."""
    temporary = output.with_name(f".{output.name}.part")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows.columns, *_ADDED], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(_merged(rows, predictions))
        os.replace(temporary, output)
    except OSError as error:
        raise DataError(output, f"cannot be written: {error.strerror}", "Choose another output.") from error


def _merged(rows: TextRows, predictions: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row, line, prediction in zip(rows.rows, rows.lines, predictions, strict=True):
        yield {
            **row,
            **prediction,
            "probability": f"{prediction['probability']:.6f}",
            "source_line": line,
        }
