"""Classes of rows, learned from columns of numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.common.table_task import (
    LABELS,
    NETWORKS,
    ROWS,
    SETTINGS,
    label_comment,
    load_table_task,
    read_table_rows,
    score_of,
    table_inference,
    usable_columns,
    without_faults,
)
from snugfit.tasks.inference import Inference
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_MOST_CLASSES = 100


def _load(recipe: TaskRecipe, empty: bool, _keep: KeepPart | None) -> Task:
    return load_table_task(recipe, empty, classes=True)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.tasks.common.classes import most_likely

    decode = partial(most_likely, tuple(meta["labels"]))
    return table_inference(meta, decode, ("prediction", "probability"), CARD.metrics)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    label = data.get("label") or source.named(LABELS) or _last(source)
    if label is None or not _is_class(source, label):
        return None
    named = label in (data.get("label"), source.named(LABELS))
    columns = usable_columns(source, label, data)
    if not columns.useful:
        return None
    classes = source.classes(label)
    left_out, comment = without_faults(source, label, columns)
    return Recognition(
        data={**columns.settings, "label": label, **left_out},
        reason=f"{counted(len(source.rows), 'row')}, {columns.counted}, {counted(len(classes), 'class')} in column '{label}'",
        score=score_of(source, label, columns, named=named),
        examples=len(source.rows),
        comments={
            "data.label": label_comment(
                f"{len(classes):,} classes of {source.class_sizes(label)} rows each", named=named
            ),
            **columns.comments,
            **comment,
        },
        notes=columns.notes,
    )


def _last(rows: Rows) -> str | None:
    return rows.columns[-1] if rows.columns else None


def _is_class(rows: Rows, column: str) -> bool:
    values = rows.values(column)
    named = bool(values) and all(isinstance(value, (str, int)) and _is_name(str(value)) for value in values)
    return named and 2 <= len(rows.classes(column)) <= min(_MOST_CLASSES, max(2, len(rows.rows) // 5))


def _is_name(value: str) -> bool:
    """Return whether a value can name a class: no fraction."""
    try:
        return float(value).is_integer() and "." not in value
    except ValueError:
        return True


CARD = Card(
    name="tabular-classification",
    summary="Tell which class a row of numbers and categories is of.",
    loss="cross_entropy",
    metrics=("accuracy", "macro_f1"),
    settings=SETTINGS,
    columns=("label", "columns"),
    load=_load,
    classes=True,
    inference=_inference,
    networks=NETWORKS,
    model="table",
    recognize=_recognize,
    read_rows=partial(read_table_rows, classes=True),
    rows=ROWS,
    pipeline="tabular-classification",
)
