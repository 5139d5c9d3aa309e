"""Watch predictions being compared with what is right, which is how they are scored by hand."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sized
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.run_events import Fault, TakenOut
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Compared,
    Forward,
    Hits,
    Loss,
    SklearnScore,
    WrongAxis,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import is_own, where
from snugfit.doctor.observe.watchers.modules.watch_modules import ModuleWatch
from snugfit.doctor.observe.watchers.scores.taken_classes import TakenClasses
from snugfit.doctor.observe.watchers.scores.watch_loops import look_at_loop
from snugfit.doctor.observe.watchers.tensors.watch_shapes import look_at_scored_shapes
from snugfit.doctor.observe.watchers.texts.stepped_tokens import look_at_truths

_Call = Callable[..., Any]
HALF = 0.5
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


def _look_at_whole(recorder: Recorder, modules: ModuleWatch, one: Any, other: Any) -> None:
    """Note the place of the largest of all scores that is compared with a class for each row."""
    known = modules.class_axes.whole_against(one, other)
    modules.class_axes.whole = None
    if known is None or not recorder.active:
        return
    (rows, columns), at = known
    what = f"the argmax of scores of {[rows, columns]} is one place among all {rows * columns}, and is compared with the classes of {rows} rows"
    fix = "predicted = scores.argmax(dim=1)"
    recorder.add(WrongAxis(at, recorder.log.updates, "argmax without an axis", what, fix))


def note_score(recorder: Recorder, modules: ModuleWatch, one: Tensor, other: Tensor) -> None:
    """Record that the predictions of the last forward pass, which had no graph, are compared with what is right by their difference."""
    last = recorder.log.events[-1] if recorder.log.events else None
    if not isinstance(last, Forward) or last.grad or modules.inside:
        return
    if one.shape == other.shape and one.shape[:1] == (last.rows,) and last.rows > 1 and recorder.active:
        with recorder.guard():
            recorder.add(Compared(where(), recorder.log.updates))


def _follows_evaluation(recorder: Recorder) -> bool:
    """Return whether one of the last acts was a forward pass without a graph, behind which alone a comparison says something."""
    return any(isinstance(event, Forward) and not event.grad for event in recorder.log.events[-3:])


def _look_at_comparison(recorder: Recorder, modules: ModuleWatch, one: Any, other: Any) -> None:
    """Note what is compared behind a forward pass without a graph: shapes that do not fit, a score of each row, what becomes of it in a loop."""
    if modules.inside or not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return
    look_at_scored_shapes(recorder, "the comparison", one, other)
    if one.shape != other.shape or not recorder.active:
        return
    last: Any = recorder.log.events[-1]
    scored = isinstance(last, Forward) and not last.grad and one.numel() >= last.rows > 1
    if scored and one.numel() % last.rows == 0:
        recorder.add(Compared(where(), recorder.log.updates))
    if one.shape[:1] == (modules.rows_in_batch,):
        look_at_loop(recorder, modules, mean=False)


def _comparing(recorder: Recorder, modules: ModuleWatch, taken: TakenClasses) -> Callable[[_Call], _Call]:
    """Return what wraps a comparison for equality."""

    def wrapped(original: _Call) -> _Call:
        def compare(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.looking or torch.compiler.is_dynamo_compiling() or not recorder.here:
                return original(input, other, *args, **kwargs)
            if recorder.tokens.steps and not (torch.is_grad_enabled() or modules.inside):
                with recorder.guard():
                    look_at_truths(recorder, input, other)
            follows = _follows_evaluation(recorder)
            if not (
                follows or modules.class_axes.bests or modules.class_axes.whole or taken.waits_for(input)
            ):
                return original(input, other, *args, **kwargs)
            with recorder.guard():
                _look_at_columns(recorder, modules, input, other)
                _look_at_whole(recorder, modules, input, other)
                taken.compared(input, other)
                if follows:
                    _look_at_comparison(recorder, modules, input, other)
            result = original(input, other, *args, **kwargs)
            with recorder.guard():
                if follows and not original.__name__.strip("_").startswith("n"):
                    _count_hits(recorder, modules, input, other, result)
            return result

        return compare

    return wrapped


def _bounding(recorder: Recorder) -> Callable[[_Call], _Call]:
    """Return what wraps a comparison by size: of raw scores with one half."""

    def wrapped(original: _Call) -> _Call:
        def compare(input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                isinstance(other, float)
                and other == HALF
                and recorder.raw_scores
                and not (recorder.looking or torch.is_grad_enabled() or torch.compiler.is_dynamo_compiling())
                and recorder.here
            ):
                with recorder.guard():
                    _look_at_half(recorder, input)
            return original(input, other, *args, **kwargs)

        return compare

    return wrapped


def _look_at_half(recorder: Recorder, scores: Tensor) -> None:
    """Note raw scores of the kind that a binary loss with logits gets, as they are compared with one half in an evaluation."""
    last = recorder.log.events[-1] if recorder.log.events else None
    scored = isinstance(last, Forward) and not last.grad and scores.shape[:1] == (last.rows,)
    if not scored or not recorder.active or scores.shape[1:] not in recorder.raw_scores:
        return
    values = scores.detach()
    if values.is_floating_point() and values.numel() and bool(((values < 0) | (values > 1)).any()):
        what = (
            f"Raw scores of {float(values.min()):.2g} to {float(values.max()):.2g} are compared with 0.5, which is a bound of probabilities: "
            "that of scores is 0."
        )
        fix = "predicted = torch.sigmoid(scores) > 0.5   # or scores > 0"
        recorder.add(Fault(where(), recorder.log.updates, "wrong_scores", what, fix))


def _taking(recorder: Recorder, modules: ModuleWatch) -> Callable[[_Call], _Call]:
    """Return what wraps the way to NumPy."""

    def wrapped(original: _Call) -> _Call:
        def numpy(values: Any, *args: Any, **kwargs: Any) -> Any:
            last = recorder.log.events[-1] if recorder.log.events else None
            if isinstance(last, Forward) and not (last.grad or recorder.looking) and recorder.here:
                with recorder.guard():
                    whole = values.dim() > 0 and len(values) == last.rows > 1 and not modules.inside
                    if whole and recorder.active and is_own(sys._getframe(1).f_code.co_filename):
                        recorder.add(TakenOut(where(), recorder.log.updates))
            return original(values, *args, **kwargs)

        return numpy

    return wrapped


def watch_scores(recorder: Recorder, modules: ModuleWatch, taken: TakenClasses, patches: Patches) -> None:
    """Record the first comparison for equality after a forward pass without a graph, where each of its rows has an entry."""

    def scoring(original: _Call) -> _Call:
        name = original.__name__

        def score(*args: Any, **kwargs: Any) -> Any:
            rows = 0
            with recorder.guard():
                right = args[0] if args else kwargs.get("y_true")
                rows = len(right) if recorder.active and isinstance(right, Sized) else 0
                predicted = args[1] if len(args) > 1 else kwargs.get("y_pred", kwargs.get("y_score"))
                if rows and isinstance(predicted, Sized):
                    taken.scored(name, right, predicted)
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

    patches.wrap(Tensor, "numpy", _taking(recorder, modules))
    for name in ("gt", "ge", "__gt__", "__ge__"):
        patches.wrap(Tensor, name, _bounding(recorder))
    patches.after_import("sklearn.metrics", metrics_imported)
    for name in (
        "eq",
        "ne",
        "__eq__",
        "__ne__",
    ):  # torch.eq itself stays: TorchScript knows it by its identity
        patches.wrap(Tensor, name, _comparing(recorder, modules, taken))
