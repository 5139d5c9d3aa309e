"""A number of each row, learned from columns of numbers and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.data.tables.table_cells import holds_numbers
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
from snugfit.tasks.inference import Inference, Prediction
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_FEWEST_VALUES = 10
"""A column of fewer numbers may as well name classes."""


def _load(recipe: TaskRecipe, empty: bool, _keep: KeepPart | None) -> Task:
    return load_table_task(recipe, empty, classes=False)


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    return table_inference(meta, _numbers, ("prediction",), CARD.metrics)


def _numbers(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    from snugfit.core.losses import logits_of
    from snugfit.core.scalar_reads import read

    numbers = read(logits_of(outputs).float().flatten(), assume=[0.0] * len(examples))
    return [{"prediction": number} for number in numbers]


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows) or not source.columns:
        return None
    label = data.get("label") or source.named(LABELS) or source.columns[-1]
    if (
        not holds_numbers([row.get(label) for row in source.rows])
        or len(source.classes(label)) < _FEWEST_VALUES
    ):
        return None
    named = label in (data.get("label"), source.named(LABELS))
    columns = usable_columns(source, label, data)
    if not columns.useful:
        return None
    left_out, comment = without_faults(source, label, columns)
    return Recognition(
        data={**columns.settings, "label": label, **left_out},
        reason=f"{counted(len(source.rows), 'row')}, {columns.counted}, a number to predict in column '{label}'",
        score=score_of(source, label, columns, named=named) - 0.02,
        examples=len(source.rows),
        comments={
            "data.label": label_comment(f"a number of {len(source.classes(label)):,} values", named=named),
            **columns.comments,
            **comment,
        },
        notes=columns.notes,
    )


CARD = Card(
    name="tabular-regression",
    summary="Predict a number of a row of numbers and categories.",
    loss="mse",
    metrics=("rmse", "mae", "r2"),
    settings=SETTINGS,
    columns=("label", "columns"),
    load=_load,
    inference=_inference,
    networks=NETWORKS,
    model="table",
    recognize=_recognize,
    read_rows=partial(read_table_rows, classes=False),
    rows=ROWS,
    plain_rows=True,
    pipeline="tabular-regression",
)
