"""Labels of texts, or of pairs of texts, of which a row has any number: none, one or more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from snugfit.tasks.classes import columns_of_labels, likely_labels
from snugfit.tasks.inference import Inference
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of
from snugfit.tasks.task import Task
from snugfit.tasks.task_card import Card
from snugfit.tasks.texts import (
    ROWS,
    labelled_text_inference,
    labelled_text_task,
    length_of_texts,
    text_columns,
)

if TYPE_CHECKING:
    from snugfit.data.label_sets import LabelSets
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe

_LABELS = ("labels", "label", "tags", "topics", "categories", "genres", "keywords", "classes", "emotions")
_CLASSES = ("label", "class", "target")
"""Names of a column of one class a row, in the order in which they are looked for."""

_SEPARATORS = ("|", ";", ",")
_LISTED, _JOINED, _BINARY = 0.9, 0.85, 0.82
"""How likely rows have any number of labels: by lists, by texts with separators under a usual name, by columns of 0 and 1."""

_MOST_LABELS = 1000
_JOINED_ROWS = 0.05
_SAMPLE = """\
{"text": "The parcel came late and half of it was missing", "labels": ["delivery", "complaint"]}
{"text": "It broke on the second day", "labels": ["quality", "complaint"]}
{"text": "The delivery came on time and everything was there", "labels": ["delivery", "praise"]}
{"text": "Great quality, well packed and on time", "labels": ["delivery", "quality", "praise"]}
{"text": "Where is your shop?", "labels": []}
{"text": "I would buy it again at once", "labels": ["praise"]}
{"text": "Far too loud and far too heavy", "labels": ["quality", "complaint"]}
{"text": "Nobody answers the phone", "labels": ["complaint"]}
"""


def _load(recipe: Recipe, empty: bool, keep: KeepPart | None) -> Task:
    from snugfit.step.label_metrics import label_set_metrics

    data = recipe.data
    meta = {
        "separator": data.separator,
        "label_columns": list(data.label_columns or ()),
        "threshold": data.threshold,
    }
    metrics = label_set_metrics(data.threshold)
    return labelled_text_task(
        recipe, empty, keep, classes=True, sets=_sets(recipe), meta=meta, metrics=metrics
    )


def _sets(recipe: Recipe) -> LabelSets:
    from snugfit.data.label_sets import LabelSets

    data = recipe.data
    return LabelSets(data.label, data.separator, data.label_columns or (), data.classes or ())


def _inference(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    from snugfit.core.losses import binary_cross_entropy
    from snugfit.data.label_sets import LabelSets
    from snugfit.step.label_metrics import label_set_metrics

    labels, threshold = tuple(meta["labels"]), meta["threshold"]
    sets = LabelSets(meta["label_column"], meta["separator"], tuple(meta["label_columns"]))
    decode = partial(likely_labels, labels, threshold)
    return replace(
        labelled_text_inference(meta, tokenizer, labels, decode, columns_of_labels(labels), sets),
        classes=labels,
        any_number=True,
        loss=binary_cross_entropy,
        metrics=CARD.metrics,
        own_metrics=label_set_metrics(threshold),
    )


def _read_rows(recipe: Recipe) -> Part:
    from snugfit.data.usable_rows import read_part

    data = recipe.data
    return read_part(data.rows, "data.train", data.text, _sets(recipe), None, recipe.folder, pair=data.pair)


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows):
        return None
    label, separator, count = (None, None, 0) if data.get("label_columns") else _label_column(source, data)
    if label is not None:
        used: Sequence[str] = (label,)
        settings: dict[str, Any] = {"label": label, **({"separator": separator} if separator else {})}
        reason = f"any number of {count:,} labels in column '{label}'"
        score = _JOINED if separator else _LISTED
    elif used := _binary_columns(source, data):
        settings = {"label_columns": used}
        reason, score = f"a column of 0 and 1 for each of {len(used):,} labels", _BINARY
    else:
        return None
    class_column = None if data.get("label") or data.get("label_columns") else source.named(_CLASSES)
    if class_column is not None and class_column not in used:  # what rows have besides is no label of theirs
        return None
    texts, second = text_columns(source, used, data)
    if not texts:
        return None
    return Recognition(
        data={
            "text": texts,
            **second,
            **settings,
            "max_length": length_of_texts(source, texts, second),
        },
        reason=f"{len(source.rows):,} rows, {reason}",
        score=score,
        examples=len(source.rows),
    )


def _label_column(rows: Rows, data: Mapping[str, Any]) -> tuple[str | None, str | None, int]:
    """Return the column whose cells list labels, what separates them in texts, and how many there are."""
    given = data.get("label")
    named = rows.named(_LABELS)
    for column in (given,) if given else (*((named,) if named else ()), *rows.columns):
        cells = rows.values(column)
        listed = [cell for cell in map(_from_json, cells) if isinstance(cell, (list, tuple))]
        if cells and len(listed) == len(cells):
            names = {str(each) for cell in listed for each in cell}
            plain = all(isinstance(each, (str, int)) for cell in listed for each in cell)
            if plain and 0 < len(names) <= min(_MOST_LABELS, max(2, len(rows.rows) // 2)):
                return column, None, len(names)
    column = given or named
    if column is None or not rows.is_text(column):
        return None, None, 0
    for separator in (data["separator"],) if data.get("separator") else _SEPARATORS:
        if count := _joined(rows.values(column), separator):
            return column, separator, count
    return None, None, 0


def _from_json(cell: Any) -> Any:
    """Return the list that a text writes as JSON; what is none as it is."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _joined(cells: Sequence[str], separator: str) -> int:
    """Return of how many labels cells are joined: they are fewer than the ways in which they are joined; 0 where they are not joined."""
    parts = [[part.strip() for part in cell.split(separator) if part.strip()] for cell in cells]
    names = {part for row in parts for part in row}
    joined = sum(len(row) > 1 for row in parts) >= max(1, _JOINED_ROWS * len(cells))
    return len(names) if joined and len(names) < len(set(cells)) and len(names) <= _MOST_LABELS else 0


def _binary_columns(rows: Rows, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of 0 and 1, where there are two or more and nothing else but texts."""
    if given := data.get("label_columns"):
        return columns_of(given)
    if data.get("label"):
        return ()
    columns = tuple(column for column in rows.columns if set(rows.classes(column)) == {"0", "1"})
    others = [column for column in rows.columns if column not in columns and not rows.is_text(column)]
    return columns if len(columns) > 1 and not others else ()


CARD = Card(
    name="multi-label-classification",
    summary="Tell which labels a text has, of which it may have none or any number.",
    loss="binary_cross_entropy",
    metrics=("micro_f1", "macro_f1", "exact_match", "mean_average_precision"),
    losses=("binary_cross_entropy",),
    settings=(*ROWS, "pair", "label", "separator", "label_columns", "classes", "threshold"),
    load=_load,
    inference=_inference,
    recognize=_recognize,
    read_rows=_read_rows,
    rows="a file of rows with a list of labels, or with a column of 0 and 1 for each",
    new_rows="NEW.jsonl",
    pipeline="text-classification",
    sample=(".jsonl", _SAMPLE),
    plain_rows=True,
)
