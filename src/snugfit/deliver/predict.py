"""Predictions and scores of files and rows by what a run saved as best, or what the registry holds.

Registered models carry code that takes `load_predictor` from here.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from snugfit.data.files.file_kinds import SOURCE_LINE
from snugfit.data.files.file_rows import FileRows
from snugfit.data.frames import without_frame
from snugfit.data.report import DataReport
from snugfit.deliver.ensemble import Ensemble, Views, bundles_of, check_views
from snugfit.deliver.files import check_data, check_output
from snugfit.deliver.observed_evaluation import Observed
from snugfit.deliver.predictor import Predictor, load_predictor
from snugfit.deliver.scores import scores_of
from snugfit.deliver.shown_rows import FileShown
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.bundle import LEARNED_BY
from snugfit.step.build import check_dataset
from snugfit.system.disk_files import whole_file
from snugfit.system.user_objects import is_python_path, load_object

if TYPE_CHECKING:
    from snugfit.planner.generation import GenerationPlan
    from snugfit.step.metrics.metric import RowMetric

_ONE_ALONE = "is planned for one model and one view", "Leave out the others."
_OTHER_FORMATS = (".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


def predict_file(
    source: str | Path,
    data: str,
    output: Path,
    *,
    others: Sequence[str | Path] = (),
    views: Views = 1,
    top: int = 1,
    proba: bool = False,
    num_beams: int = 1,
    memory: int | None = None,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Write the rows of `data` with those of their predictions and `source_line`, the row's line in `data`, as CSV.

    Args:
        source: the folder of a run or of a model, or the address of a registered one, in the tracker at `uri`; the folder of a
            cross-validation has its folds predict together.
        others: further ones that predict together with it: the mean of their probabilities, or of their numbers.
        views: of each row, whose predictions are averaged: as it is, and drawn as in training; or "flips", as it is and mirrored.
        top, proba: as of `Predictor.in_detail`.
        num_beams: as of `Predictor.with_beams`.
        memory: bytes that a model which writes texts may take of its device, which is planned first (`generation_memory`).
    Returns:
        Counts: rows, rows left out by reason, and rows by the label that is predicted.
    Raises:
        DataError: the data cannot be used, is the file that is to be written, or has a column of one of those names; the file cannot
            be written, or is named as another format than CSV.
    """
    check_output(output, data)
    if output.suffix.lower() in _OTHER_FORMATS:
        raise DataError(
            "-o", f"{output} is named as another format, and predictions are CSV", "Name a .csv file."
        )
    check_data(data)
    check_views(views)
    loaded = _predictors((source, *others), uri, allow_code, "auto" if memory is None else "cpu")
    first, *more = [each.with_beams(num_beams) for each in loaded]
    if memory is not None and (more or views != 1):
        raise SettingError("memory", *_ONE_ALONE)
    predictor = first.in_detail(top, proba)
    added = (*predictor.inference.columns, SOURCE_LINE)
    rows = _rows(predictor, data, labelled=False, bad_rows=bad_rows)
    taken = set(added) & set(rows.columns)
    if taken:
        raise DataError(
            data, f"has a column '{min(taken)}' already", "Rename it: predictions go under that name."
        )
    if more or views != 1:
        ensemble = Ensemble((first, *more), views)
        rows, outputs = ensemble.outputs(data, labelled=False, bad_rows=bad_rows)
        predictions = ensemble.decode(outputs, rows, top=top, every=proba)
    else:
        if memory is not None:
            predictor, _ = _within(predictor, rows, memory)
        predictions = predictor.predict_examples(rows.examples)
    with _saved(predictor, output, predictions) as written:
        whole = [predictor.unfolded(each) for each in written]
        _write_csv(output, rows, whole, added)
    counts = dict.fromkeys(predictor.inference.classes, 0)
    for prediction in predictions if counts else ():
        named = prediction[predictor.inference.columns[0]]
        for name in named if predictor.inference.any_number else (named,):
            counts[name] += 1
    return {
        "output": str(output),
        "rows": sum(map(len, whole)),
        "skipped": dict(rows.report.skipped),
        **({"warnings": list(rows.report.warnings)} if rows.report.warnings else {}),
        "predictions": counts,
        **_about((first, *more)),
    }


def evaluate_file(
    source: str | Path,
    data: str,
    metrics: Sequence[str] = (),
    *,
    others: Sequence[str | Path] = (),
    views: Views = 1,
    num_beams: int = 1,
    memory: int | None = None,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
    page: Path | None = None,
) -> dict[str, Any]:
    """Return loss and metrics of a model on labelled rows, by default those of its task; with `allow_code` the loss that the model learned by.

    Args:
        data: a file; of a model whose task has no rows in files the `package.module:function` that returns its examples.
        metrics: names of built-in ones, or `package.module:function` of one's own.
        source, others, views, num_beams: as of `predict_file`; of several together it is the loss of their mean.
        memory: bytes that a language model may take of its device to be scored, which is planned first (`generation_memory`).
        page: that is to be written: with `details`, an `EvaluationDetails`.
    Raises:
        DataError: the data cannot be used; a label not seen in training is a fault of its row.
    """
    if page is not None:
        check_output(page, data, "--page", "evaluation.html")
    check_data(data)
    check_views(views)
    device = "auto" if memory is None else "cpu"
    loaded = _loaded((source, *others), uri, allow_code, device)
    if is_python_path(data) and len(loaded) == 1 and loaded[0].inference.read is None:
        if memory is not None or views != 1:
            setting = "memory" if memory is not None else "--views"
            raise SettingError(setting, "is for models that read rows of files", "Leave it out.")
        return _evaluated_function(loaded[0].with_beams(num_beams), data, metrics, bad_rows, page)
    for each in loaded:
        _check_reads(each)
    predictors = [each.with_beams(num_beams) for each in loaded]
    if allow_code:
        predictors = [each.by_own_loss() for each in predictors]
    if memory is not None and (len(predictors) > 1 or views != 1):
        raise SettingError("memory", *_ONE_ALONE)
    observer = None if page is None else Observed(predictors[0].inference, predictors[0].meta)
    plan: GenerationPlan | None = None
    if len(predictors) > 1 or views != 1:
        rows, values = Ensemble(predictors, views).scores(data, metrics, bad_rows=bad_rows, observer=observer)
    else:
        (predictor,) = predictors
        rows = _rows(predictor, data, labelled=True, bad_rows=bad_rows)
        if memory is not None:
            predictor, plan = _within(predictor, rows, memory, scored=True)
        values = scores_of(predictor, rows, metrics, planned=memory is not None, observer=observer)
    return _evaluated(predictors, rows, values, observer, plan)


def evaluate_rows(
    predictor: Predictor,
    data: Any,
    metrics: Sequence[str] | Mapping[str, str | RowMetric] = (),
    *,
    bad_rows: str = "fail",
) -> dict[str, Any]:
    """Return loss and metrics of a loaded model on labelled rows, with `details`, an `EvaluationDetails`.

    Args:
        data: a file, or rows with its columns; for a model whose task has no rows in files, examples as its data set gives them.
        metrics: as of `evaluate_file`, or functions of one's own by name.
    Raises:
        DataError: as of `evaluate_file`.
        ModelError: the model's loss is not known.
    """
    data, use = without_frame(data), predictor.inference
    if use.loss is None and use.own_loss is None:
        raise ModelError(
            predictor.source,
            "was trained with a loss of your own, which is not kept with it",
            "Give what sf.train was given: sf.load(…, loss=…).",
        )
    if use.read is None:
        check_dataset("data", data)
        examples = FileRows(data, [], [], (), use.collate, DataReport(0, len(data)), {})
    elif isinstance(data, (str, os.PathLike)):
        check_data(os.fspath(data))
        examples = _rows(predictor, os.fspath(data), labelled=True, bad_rows=bad_rows)
    elif not isinstance(data, Iterable):
        raise DataError(
            "data", f"got {data!r}", "Give a file, a data frame of pandas, or mappings of columns."
        )
    else:
        examples = use.read(_as_source(data), labelled=True, bad_rows=bad_rows)
    observer = Observed(use, predictor.meta)
    values = scores_of(predictor, examples, metrics, observer=observer)
    return _evaluated([predictor], examples, values, observer)


def _as_source(rows: Iterable[Mapping[str, Any]]) -> Callable[[], Iterable[Mapping[str, Any]]]:
    """Return rows as a source of rows, which messages call the data."""

    def source() -> Iterable[Mapping[str, Any]]:
        return rows

    source.__qualname__ = "the data"
    return source


def _evaluated(
    predictors: Sequence[Predictor],
    rows: FileRows,
    values: Mapping[str, float],
    observer: Observed | None,
    plan: GenerationPlan | None = None,
) -> dict[str, Any]:
    """Return scores with what is told beside them."""
    shown = FileShown(rows, of_pictures="image_column" in predictors[0].meta)
    warnings = [*rows.report.warnings, *_of_other_losses(predictors)]
    return {
        "metrics": values,
        **({} if plan is None else {"memory": str(plan)}),
        **({} if observer is None else {"details": observer.details(shown)}),
        **({"baseline": dict(rows.report.baseline)} if rows.report.baseline else {}),
        "rows": len(rows.rows) or len(rows.examples),
        "skipped": dict(rows.report.skipped),
        **({"warnings": warnings} if warnings else {}),
        **_about(predictors),
    }


def _of_other_losses(predictors: Sequence[Predictor]) -> list[str]:
    """Return what to know of models that are scored by another loss than they learned by."""
    names = {each.meta[LEARNED_BY] for each in predictors if LEARNED_BY in each.meta}
    return [
        f"the run learned by {name}, and the loss here is its task's. By its own: --allow-code, which imports it, or sf.load(RUN, loss=…).evaluate(DATA)."
        for name in sorted(names)
    ]


def scores_beside(
    predictor: Predictor, other: nn.Module, data: str, *, most: int
) -> tuple[int, dict[str, float], dict[str, float]]:
    """Return how many rows of a file were scored, the first ones up to so many, with the loss and the metrics of a model and of another in its place.

    Raises:
        UserError: the model scores no rows of files, or the data cannot be used.
    """
    _check_reads(predictor)
    rows = _rows(predictor, data, labelled=True, bad_rows="skip")
    before, after = (scores_of(each, rows, (), most) for each in (predictor, replace(predictor, model=other)))
    return min(len(rows.examples), most), before, after


def _within(
    predictor: Predictor, rows: FileRows, memory: int, *, scored: bool = False
) -> tuple[Predictor, GenerationPlan | None]:
    """Return the predictor on its device, with the texts that it writes, or is scored by, planned for so many bytes, and the plan."""
    from snugfit.deliver.generation_memory import within_memory

    examples = map(rows.examples.__getitem__, range(len(rows.examples)))
    length = predictor.inference.length
    lengths = [len(each["input_ids"]) if scored else length(each) for each in examples]
    return within_memory(predictor, lengths, memory, scored=scored)


def _predictors(
    sources: Sequence[str | Path], uri: str | None, allow_code: bool, device: str = "auto"
) -> list[Predictor]:
    """Return the models of sources, each of which predicts for files."""
    predictors = _loaded(sources, uri, allow_code, device)
    for predictor in predictors:
        _check_reads(predictor)
    return predictors


def _loaded(sources: Sequence[str | Path], uri: str | None, allow_code: bool, device: str) -> list[Predictor]:
    """Return the models of sources."""
    bundles = [bundle for source in sources for bundle in bundles_of(source, uri=uri)]
    return [load_predictor(bundle, device, allow_code=allow_code) for bundle in bundles]


def _evaluated_function(
    predictor: Predictor, data: str, metrics: Sequence[str], bad_rows: str, page: Path | None
) -> dict[str, Any]:
    """Return the scores of a model of the user's own on the examples that a function of theirs returns."""
    function = load_object(data, setting="data", folder=Path.cwd())
    scores = evaluate_rows(
        predictor, function() if callable(function) else function, metrics, bad_rows=bad_rows
    )
    return scores if page is not None else {name: each for name, each in scores.items() if name != "details"}


def _about(predictors: Sequence[Predictor]) -> dict[str, Any]:
    """Return which weights predict, or how many models do together."""
    if len(predictors) > 1:
        return {"models": len(predictors)}
    (predictor,) = predictors
    return {"weights": predictor.meta.get("weights"), "update": predictor.meta.get("update")}


def _check_reads(predictor: Predictor) -> None:
    if predictor.inference.read is None:
        raise ModelError(
            "model",
            f"of the task '{predictor.meta['task']}' has no rows in files",
            "Use it in Python: snugfit.load(folder).predict(rows), or .evaluate(rows). To evaluate it here, name a function that "
            "returns its examples: package.module:function.",
        )


def _rows(predictor: Predictor, data: str, *, labelled: bool, bad_rows: str) -> FileRows:
    assert predictor.inference.read is not None
    return predictor.inference.read(data, labelled=labelled, bad_rows=bad_rows)


@contextmanager
def _saved(
    predictor: Predictor, output: Path, predictions: Sequence[dict[str, Any]]
) -> Iterator[Sequence[dict[str, Any]]]:
    """Temporarily write what no cell holds beside the output, into a folder that gets its name once all is written.

    Raises:
        DataError: the folder is there already, or cannot be written.
    """
    saved = predictor.inference.saved
    if saved is None:
        yield predictions
        return
    folder = output.with_name(f"{output.stem}-files")
    if folder.exists():
        raise DataError(
            folder, "is there already, and nothing is overwritten", "Remove it, or name another output."
        )
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        named = [saved(each, temporary, f"{number:06d}") for number, each in enumerate(predictions, 1)]
        yield [{name: f"{folder.name}/{file}" for name, file in each.items()} for each in named]
        os.replace(temporary, folder)
    except OSError as error:
        raise DataError(folder, f"cannot be written: {error.strerror}", "Choose another output.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_csv(
    output: Path, rows: FileRows, predictions: Sequence[Sequence[Mapping[str, Any]]], added: Sequence[str]
) -> None:
    """Write whole or not at all."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as draft, draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*rows.columns, *added], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(_merged(rows, predictions))
    except OSError as error:
        raise DataError(output, f"cannot be written: {error.strerror}", "Choose another output.") from error


def _merged(rows: FileRows, predictions: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
    for row, line, own in zip(rows.rows, rows.lines, predictions, strict=True):
        for prediction in own:
            cells = {
                name: f"{value:.6f}" if isinstance(value, float) else value
                for name, value in prediction.items()
            }
            yield {name: cell(value) for name, value in {**row, **cells, SOURCE_LINE: line}.items()}


def cell(value: Any) -> Any:
    """Return what stands in a cell: JSON of a list or a mapping, so that it can be read again."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, tuple, dict)) else value
