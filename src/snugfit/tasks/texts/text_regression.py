"""A number of each text, such as a rating, or of each pair of texts, such as how alike they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snugfit.data.tables.table_cells import holds_numbers, parsed_cell
from snugfit.tasks.common.texts import (
    ROWS,
    labelled_text_inference,
    labelled_text_task,
    length_of_texts,
    text_columns,
)
from snugfit.tasks.inference import Inference, Prediction
from snugfit.tasks.recognition import Recognition, Rows, Script
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card

if TYPE_CHECKING:
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

_LABELS = ("label", "score", "rating", "stars", "similarity", "target", "value", "price", "grade", "y")
_FEWEST_VALUES = 10
"""A column of fewer numbers may as well name classes."""

_GUESS = 0.2
"""How likely a column of any other name is the number to predict; texts alone, for a language model, are likelier."""


def _load(recipe: TaskRecipe, empty: bool, keep: KeepPart | None) -> Task:
    return labelled_text_task(recipe, empty, keep, classes=False)


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.kit.losses.rescaled import Rescaled, RescaledError

    return replace(
        labelled_text_inference(meta, tokenizer, None, _numbers, ("prediction",)),
        forward=Rescaled(meta["middle"], meta["spread"]),
        counted="numbers",
        loss=RescaledError(meta["spread"]),
        metrics=CARD.metrics,
    )


def _numbers(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
    from snugfit.core.scalar_reads import read

    return [{"prediction": number} for number in read(outputs.float(), assume=[0.0] * len(examples))]


def _read_rows(recipe: TaskRecipe) -> Part:
    from snugfit.data.usable_rows import read_part

    data = recipe.data
    return read_part(
        data.rows, "data.train", data.text, data.label, None, recipe.folder, pair=data.pair, numbers=True
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    named = data.get("label") or source.named(_LABELS)
    possible = [named] if named else [column for column in source.columns if not source.counts_rows(column)]
    numbers = [column for column in possible if _may_be_label(source, column, named=bool(named))]
    if not numbers:
        return None
    *others, label = numbers
    columns, second = text_columns(source, label, data)
    if not columns:
        return None
    what = "pairs of texts" if second else "texts"
    return Recognition(
        data={
            "text": columns,
            **second,
            "label": label,
            "max_length": length_of_texts(source, columns, second),
        },
        reason=f"{len(source.rows):,} {what}, a number to predict in column '{label}'",
        score=_GUESS if not named else 0.82 if _has_fractions(source, label) else 0.78,
        examples=len(source.rows),
        comments={"data.label": _comment(source, label, others)},
    )


def _may_be_label(rows: Rows, column: str, *, named: bool) -> bool:
    """Return whether a column holds numbers, and enough of them; of one that is named two, where they have fractions, which name no classes."""
    numbers = holds_numbers([row.get(column) for row in rows.rows])
    fractions = named and all(isinstance(value, float) for value in rows.values(column))
    return numbers and len(rows.classes(column)) >= (2 if fractions else _FEWEST_VALUES)


def _comment(rows: Rows, label: str, others: Sequence[str]) -> str:
    """Return what the label holds, and how one of the others is taken in its place."""
    meaning = f"a number of {len(rows.classes(label)):,} values"
    if not others:
        return meaning
    return f"{meaning}; numbers are in {', '.join(others)} too: another is named by snugfit init … data.label=COLUMN"


def _has_fractions(rows: Rows, label: str) -> bool:
    """Return whether some numbers are no whole ones, by which classes are often numbered."""
    numbers = [parsed_cell(value) for value in rows.values(label)]
    return any(isinstance(number, float) and not number.is_integer() for number in numbers)


CARD = Card(
    name="text-regression",
    summary="Predict a number of a text, or of a pair of texts.",
    loss="mse",
    metrics=("rmse", "mae", "r2"),
    settings=(*ROWS, "pair", "label"),
    columns=("text", "pair", "label"),
    load=_load,
    inference=_inference,
    recognize=_recognize,
    read_rows=_read_rows,
    pipeline="text-classification",
    plain_rows=True,
)
