"""Watch predictions being compared with what is right, which is how they are scored by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sized
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.attribute_patches import Patches
from snugfit.doctor.observe.run_events import TakenOut
from snugfit.doctor.observe.script_events import (
    Backward,
    Compared,
    Forward,
    Hits,
    Loss,
    SklearnScore,
    WrongAxis,
)
from snugfit.doctor.observe.watchers.watch_log import Recorder, is_own, where
from snugfit.doctor.observe.watchers.watch_loops import look_at_loop
from snugfit.doctor.observe.watchers.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.watch_shapes import look_at_scored_shapes

_Call = Callable[..., Any]
_METRICS = (
    "accuracy_score",
    "average_precision_score",
    "balanced_accuracy_score",
    "classification_report",
    "confusion_matrix",
    "f1_score",
    "log_loss",
    "mean_absolute_error",
    "mean_squared_error",
    "precision_score",
    "r2_score",
    "recall_score",
    "roc_auc_score",
)


def _count_hits(recorder: Recorder, modules: ModuleWatch, one: Any, other: Any, equal: Any) -> None:
    """Count the hits where classes are compared after a forward pass without a graph, and perhaps an argmax."""
    given = isinstance(one, Tensor) and isinstance(other, Tensor) and isinstance(equal, Tensor)
    if not given or not recorder.active or modules.inside or one.shape != other.shape or equal.is_nested:
        return
    if one.is_floating_point() or one.is_complex() or one.numel() < 2:
        return
    last = recorder.log.events[-3:]
    call = next((each for each in reversed(last) if not isinstance(each, Loss | Compared)), None)
    if isinstance(call, Forward) and not call.grad:
        hits = int(equal.count_nonzero())
        recorder.add(Hits(where(), recorder.log.updates, hits, equal.numel(), call.rows))


def _look_at_columns(recorder: Recorder, modules: ModuleWatch, one: Any, other: Any) -> None:
    """Note the rows that score best in each column of the outputs and of the targets being compared, as if they were classes."""
    known = modules.class_axes.best_of(one, other)
    if known is None or not recorder.active:
        return
    (rows, columns), at = known
    evaluated = 0
    for event in reversed(recorder.log.events):
        if isinstance(event, Backward):
            break
        if isinstance(event, Forward) and not event.grad:
            evaluated += event.rows
            if evaluated == rows != columns:
                what = f"scores of {[rows, columns]} have a row for each of the {rows} rows that were read, and the best row of each column is taken"
                fix = "predicted, wanted = scores.argmax(dim=1), targets.argmax(dim=1)"
                recorder.add(WrongAxis(at, recorder.log.updates, "argmax over the rows", what, fix))
                return


def note_score(recorder: Recorder, modules: ModuleWatch, one: Tensor, other: Tensor) -> None:
    """Record that the predictions of the last forward pass, which had no graph, are compared with what is right by their difference."""
    last = recorder.log.events[-1] if recorder.log.events else None
    if not isinstance(last, Forward) or last.grad or modules.inside:
        return
    if one.shape == other.shape and one.shape[:1] == (last.rows,) and last.rows > 1 and recorder.active:
        with recorder.guard():
            recorder.add(Compared(where(), recorder.log.updates))


def watch_scores(recorder: Recorder, modules: ModuleWatch, patches: Patches) -> None:
    """Record the first comparison for equality after a forward pass without a graph, where each of its rows has an entry."""

    def scores(one: Any, other: Any) -> bool:
        last = recorder.log.events[-1] if recorder.log.events else None
        return (
            isinstance(last, Forward)
            and not last.grad
            and recorder.active
            and not modules.inside
            and isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.shape == other.shape
            and one.numel() >= last.rows > 1
            and one.numel() % last.rows == 0
        )

    def of_rows(one: Any, other: Any) -> bool:
        """Return whether what the last forward pass gave for each row is compared with something for each."""
        both = (
            isinstance(one, Tensor) and isinstance(other, Tensor) and recorder.active and not modules.inside
        )
        return both and one.shape == other.shape and one.shape[:1] == (modules.rows_in_batch,)

    def follows_evaluation() -> bool:
        """Return whether one of the last acts was a forward pass without a graph, behind which alone a comparison says something."""
        return any(isinstance(event, Forward) and not event.grad for event in recorder.log.events[-3:])

    def comparing(original: _Call) -> _Call:
        def compare(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.looking or torch.compiler.is_dynamo_compiling() or not recorder.here:
                return original(input, other, *args, **kwargs)
            follows = follows_evaluation()
            if not (follows or modules.class_axes.bests):
                return original(input, other, *args, **kwargs)
            with recorder.guard():
                _look_at_columns(recorder, modules, input, other)
                if follows and not modules.inside:
                    look_at_scored_shapes(recorder, "the comparison", input, other)
                if follows and scores(input, other):
                    recorder.add(Compared(where(), recorder.log.updates))
                if follows and of_rows(input, other):
                    look_at_loop(recorder, modules, mean=False)
            result = original(input, other, *args, **kwargs)
            with recorder.guard():
                if follows and not original.__name__.strip("_").startswith("n"):
                    _count_hits(recorder, modules, input, other, result)
            return result

        return compare

    def scoring(original: _Call) -> _Call:
        name = original.__name__

        def score(*args: Any, **kwargs: Any) -> Any:
            rows = 0
            with recorder.guard():
                right = args[0] if args else kwargs.get("y_true")
                rows = len(right) if recorder.active and isinstance(right, Sized) else 0
            result = original(*args, **kwargs)
            with recorder.guard():
                if rows:
                    value = float(result) if isinstance(result, float) else math.nan
                    recorder.add(SklearnScore(where(), recorder.log.updates, name, rows, value))
            return result

        return score

    def metrics_imported(module: ModuleType) -> None:
        for name in _METRICS:
            patches.wrap(module, name, scoring)

    def taking(original: _Call) -> _Call:
        def numpy(values: Any, *args: Any, **kwargs: Any) -> Any:
            last = recorder.log.events[-1] if recorder.log.events else None
            if isinstance(last, Forward) and not (last.grad or recorder.looking) and recorder.here:
                with recorder.guard():
                    whole = values.dim() > 0 and len(values) == last.rows > 1 and not modules.inside
                    if whole and recorder.active and is_own(sys._getframe(1).f_code.co_filename):
                        recorder.add(TakenOut(where(), recorder.log.updates))
            return original(values, *args, **kwargs)

        return numpy

    patches.wrap(Tensor, "numpy", taking)
    patches.after_import("sklearn.metrics", metrics_imported)
    for name in (
        "eq",
        "ne",
        "__eq__",
        "__ne__",
    ):  # torch.eq itself stays: TorchScript knows it by its identity
        patches.wrap(Tensor, name, comparing)
