"""Watch pandas and scikit-learn, where rows come into another order, or are scaled by statistics of their own, before torch sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data

from snugfit.doctor.observe.events.run_events import (
    Fault,
    OtherIndex,
    OwnStatistics,
    RowsInSteps,
    ScaledAlone,
    WindowsShared,
)
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.own_source import (
    line_that_cuts_twice,
    line_that_splits,
)
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import called_directly, where
from snugfit.doctor.observe.watchers.libraries.tables import Tables
from snugfit.doctor.observe.watchers.rows.row_digests import Rows
from snugfit.doctor.observe.watchers.rows.whole_scales import (
    LEAST_ROWS,
    MOST_COLUMNS,
    is_scaled,
    is_stretched,
    tensors_of,
)

_Call = Callable[..., Any]
MOST_CODED = 256
SUBJECTS, SUBJECTS_AT_MOST, LEAST_OF_SUBJECT = 4, 33, 16
"""So many parts of the data that one line scales by themselves are subjects, or sessions: a split has three at the most."""


def watch_tables(recorder: Recorder, tables: Tables, patches: Patches) -> None:
    """Record the order of rows of arrays that are made of tables, and what was fitted to the rows that it scales."""
    _watch_pandas(recorder, tables, patches)
    _watch_scalers(recorder, tables, patches)


def _is_looked_at(recorder: Recorder) -> bool:
    """Return whether this is the script's own doing, before it trains."""
    return recorder.here and not recorder.looking and not recorder.log.updates and recorder.active


def _watch_pandas(recorder: Recorder, tables: Tables, patches: Patches) -> None:
    def numbering(original: _Call) -> _Call:
        def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
            values = original(self, *args, **kwargs)
            if _is_looked_at(recorder) and called_directly():
                with recorder.guard():
                    tables.note(values, where(), table=self)
            return values

        return to_numpy

    named: dict[
        int, tuple[Any, str]
    ] = {}  # categoricals, kept so that their numbers stay theirs, and the columns they are made of
    coded: dict[str, list[list[Any]]] = {}

    def naming(original: _Call) -> _Call:
        def __init__(self: Any, values: Any, *args: Any, **kwargs: Any) -> None:
            original(self, values, *args, **kwargs)
            name = getattr(values, "name", None)
            if isinstance(name, str) and len(named) < MOST_CODED and _is_looked_at(recorder):
                named[id(self)] = self, name

        return __init__

    def coding(original: _Call) -> _Call:
        def codes(self: Any) -> Any:
            if _is_looked_at(recorder) and id(self) in named and called_directly():
                with recorder.guard():
                    name, categories = named[id(self)][1], list(self.categories)
                    _look_at_codes(recorder, name, coded.setdefault(name, []), categories)
            return original(self)

        return codes

    def imported(module: ModuleType) -> None:
        patches.wrap(module.Categorical, "__init__", naming)
        codes = vars(module.Categorical).get("codes")
        if isinstance(codes, property) and codes.fget is not None:
            module.Categorical.codes = property(coding(codes.fget), doc=codes.__doc__)
            patches.on_undo(partial(setattr, module.Categorical, "codes", codes))
        for kind in (module.Series, module.DataFrame):
            patches.wrap(kind, "to_numpy", numbering)
            values = vars(kind).get("values")
            if isinstance(values, property) and values.fget is not None:
                kind.values = property(numbering(values.fget), doc=values.__doc__)
                patches.on_undo(partial(setattr, kind, "values", values))

    patches.after_import("pandas", imported)


def _look_at_codes(recorder: Recorder, column: str, before: list[list[Any]], categories: list[Any]) -> None:
    """Note codes of a column that another table of the same column has for other categories."""
    for other in before:
        apart = [each for each in categories if each in other and other.index(each) != categories.index(each)]
        if apart:
            first = apart[0]
            what = (
                f"The codes of column {column!r} are made anew, and {len(apart)} categories get others than before: "
                f"{first!r} was {other.index(first)} and is {categories.index(first)} here."
            )
            fix = f"codes = pd.Categorical(test[{column!r}], categories=train_categories).codes"
            recorder.add(Fault(where(), recorder.log.updates, "other_statistics", what, fix))
            return
    before.append(categories)


def _watch_scalers(recorder: Recorder, tables: Tables, patches: Patches) -> None:
    def scaling(original: _Call) -> _Call:
        def _wrap_data_with_container(
            method: str, data_to_wrap: Any, original_input: Any, estimator: Any
        ) -> Any:
            result = original(method, data_to_wrap, original_input, estimator)
            if _is_looked_at(recorder):
                with recorder.guard():
                    tables.note(np.asarray(result), where(), table=original_input)
            return result

        return _wrap_data_with_container

    def fitting(original: _Call) -> _Call:
        def fit_transform(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            if _is_looked_at(recorder):
                with recorder.guard():
                    if isinstance(result, np.ndarray) or hasattr(result, "to_numpy"):
                        tables.note(np.asarray(result), where(), fitted=type(self).__name__)
            return result

        return fit_transform

    def outputs_imported(module: ModuleType) -> None:
        patches.wrap(module, "_wrap_data_with_container", scaling)

    def bases_imported(module: ModuleType) -> None:
        patches.wrap(module.TransformerMixin, "fit_transform", fitting)

    patches.after_import("sklearn.base", bases_imported)
    patches.after_import("sklearn.utils._set_output", outputs_imported)


def look_at_orders(recorder: Recorder, tables: Tables, dataset: Any) -> None:
    """Note parts of a data set that are made of the same rows of a table in other orders."""
    held = (
        list(dataset.tensors)
        if isinstance(dataset, data.TensorDataset)
        else list(getattr(dataset, "__dict__", {}).values())
    )
    parts = [each for each in held if isinstance(each, Tensor | np.ndarray)]
    apart = tables.rows_apart(parts) if len(parts) > 1 and tables.arrays else None
    if apart is not None:
        inputs, targets = apart
        recorder.add(OtherIndex(targets, recorder.log.updates, inputs))


def look_at_scale(recorder: Recorder, values: Tensor, *, grad: bool) -> None:
    """Note a batch of many rows that was scaled by its own statistics."""
    plain = values.dim() == 2 and values.layout is torch.strided and values.is_floating_point()
    table = plain and len(values) >= LEAST_ROWS and 1 < values.shape[1] <= MOST_COLUMNS
    stretched = table and is_stretched(values)
    if table and (stretched or is_scaled(values)):
        at = recorder.deviations.get(len(values)) or where()
        if recorder.deviations_taken.get(at, 0) >= SUBJECTS:
            return
        recorder.add(ScaledAlone(at, recorder.log.updates, 0, len(values), values.shape[1], grad, stretched))


def look_at_whole(recorder: Recorder, dataset: Any, loader: int) -> None:
    """Note a data set that was scaled by its own statistics."""
    for each in tensors_of(dataset):
        wide = each.dim() == 2 and 1 < each.shape[1] <= MOST_COLUMNS
        stretched = wide and len(each) >= LEAST_ROWS and is_stretched(each)
        if wide and len(each) >= LEAST_ROWS and (stretched or is_scaled(each)):
            at = recorder.deviations.get(len(each)) or where()
            subjects = max(recorder.deviations_taken.values(), default=0) >= SUBJECTS or _is_of_subjects(each)
            if subjects:
                continue
            columns, update = each.shape[1], recorder.log.updates
            recorder.add(ScaledAlone(at, update, loader, len(each), columns, grad=False, stretched=stretched))


def _is_of_subjects(values: Tensor) -> bool:
    """Return whether rows are those of several subjects, one behind the other, as many of each, that were scaled by the statistics of each."""
    counts = [
        count
        for count in range(2, SUBJECTS_AT_MOST)
        if len(values) % count == 0 and len(values) // count >= LEAST_OF_SUBJECT
    ]
    return any(all(is_scaled(each) for each in values.chunk(count)) for count in counts)


def look_at_rows(recorder: Recorder, tables: Tables, rows: Rows) -> None:
    """Note, at the end, rows on both sides of a cut, those that no slice of a table had, and those that were scored and scaled by statistics of their own, beside others that were trained on."""
    partly = [each for each in recorder.log.overlaps if 0 < each.shared < each.rows]
    cut_at = line_that_cuts_twice() if partly else ""
    for each in partly:
        each.cut_at = cut_at
    left = rows.steps.left_out
    if left is not None:
        recorder.add(RowsInSteps(left.at, recorder.log.updates, left.step, left.size, left.end, left.rows))
    windows = rows.shared_windows()
    if windows is not None and not any(isinstance(each, WindowsShared) for each in recorder.log.events):
        at, shared, scored_windows = windows
        recorder.add(
            WindowsShared(line_that_splits() or at, recorder.log.updates, 0, 0, shared, scored_windows)
        )
    alone = tables.scaled_alone(*rows.digests()) if tables.arrays else None
    if alone is not None:
        learned, scored = alone
        recorder.add(OwnStatistics(scored.at, recorder.log.updates, scored.fitted, learned.at, scored.rows))
