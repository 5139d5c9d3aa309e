"""A recipe for a data file, when there is none yet."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snugfit.data.file_formats import DELIMITERS, delimiter_of
from snugfit.data.hub_rows import is_saved
from snugfit.data.mask_folders import mask_folders
from snugfit.data.sources import read_table
from snugfit.errors import DataError, SettingError, nearest
from snugfit.recipe.declarations import Recipe
from snugfit.recipe.load import build
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.strict_yaml import Places
from snugfit.system.json_text import parse_json
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import (
    causal_lm,
    discover,
    forecasting,
    image_classification,
    segmentation,
    tabular_classification,
    tabular_regression,
    text_classification,
    text_regression,
    token_classification,
)
from snugfit.tasks.recognition import Rows
from snugfit.tasks.tables import NETWORKS
from snugfit.tasks.task_card import Card

_ROWS = 20
_TEXT, _LABEL = "text", "label"
"""Columns that need not be named."""

_SURE = 0.5
"""The score of a recognition that is no guess."""


def infer_recipe(
    data: str,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    model: str | None = None,
    overrides: Iterable[str] = (),
) -> Recipe:
    """Return a recipe from a data file and the names of its columns; a .txt file is for a language model, a folder for classes of pictures.

    Args:
        text: the columns of text, also joined by commas; a column called `text` by default.
        label: the column of labels; a column called `label` by default. Where neither is given and the two are not there, the rows
            are recognised as `snugfit init` does.
        model: a Hugging Face name or folder.
    Raises:
        SettingError: a column is not there, or has to be named; no model is given.
        DataError: the file cannot be read.
    """
    overrides = tuple(overrides)
    path = Path(data)
    name = re.sub(r"[^\w.-]+", "-", path.stem).strip("-.") or "run"
    if model is None:
        raise SettingError(
            "--model",
            "got none",
            f"Give a Hugging Face name or a folder to start from, or have a recipe written with a model that is here: snugfit init {data}",
        )
    places = Places()
    for keys, option in (
        (("data", "train"), "--data"),
        (("data", "text"), "--text"),
        (("data", "label"), "--label"),
    ):
        places.put(keys, option)
    places.put(("model",), "--model")
    if path.is_dir() and not is_saved(path):
        if label is not None or text is not None:
            raise DataError(
                "--data",
                f"{data} is a folder of pictures, so it has no columns for --text and --label",
                "Leave them out, or name a table.",
            )
        masked = model in segmentation.NETWORKS or mask_folders(path) is not None
        tree: dict[str, Any] = {
            "task": (segmentation if masked else image_classification).CARD.name,
            "model": model,
            "data": {"train": data},
        }
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    if path.suffix.lower() == ".txt":
        if label is not None or text is not None:
            raise DataError(
                "--data",
                f"{data} is plain text, so it has no columns for --text and --label",
                "Leave them out, or name a table.",
            )
        read_table(data, setting="--data")
        tree = {"task": causal_lm.CARD.name, "model": model, "data": {"train": data}}
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    if model in forecasting.NETWORKS:
        tree = {"model": model, **_series(data, label)}
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    if model in NETWORKS:
        tree = {"model": model, **_table(data, label)}
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    columns = None if is_python_path(data) else _columns(data)
    if columns is not None and (tagged := _tagged(data, text, label, columns)):
        tree = {"model": model, **tagged}
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    named = text is not None or label is not None or {_TEXT, _LABEL} <= set(columns or ())
    if columns is not None and not named and (recognized := _recognized(data, overrides)):
        tree = {"model": model, **recognized}
        return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)
    rows = {"train": data, "text": _text(text, columns, data), "label": _label(label, columns, data)}
    card = text_classification.CARD if columns is None else _text_card(data, rows)
    tree = {"task": card.name, "model": model, "data": rows}
    return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)


def _series(data: str, label: str | None) -> dict[str, Any]:
    """Return the task of a long table of series, and the settings of its rows.

    Raises:
        DataError: no series were recognised.
        SettingError: the label is no column.
    """
    table = read_table(data, setting="--data")
    if label is not None and label not in table.columns:
        raise SettingError("--label", f"{data} has no column '{label}'", nearest(label, table.columns))
    rows = Rows(Path(data), table.columns, table.rows)
    proposal = forecasting.CARD.recognize(rows, {"label": label} if label else {})
    if proposal is None:
        raise DataError(
            "--data",
            f"{data} has no column of times at which each series has one row",
            f"Name its columns in a recipe: snugfit init {data} task=forecasting data.time=COLUMN data.series=COLUMN",
        )
    return {"task": forecasting.CARD.name, "data": {"train": data, **proposal.data}}


def _table(data: str, label: str | None) -> dict[str, Any]:
    """Return the task of a table, and the settings of its rows.

    Raises:
        DataError: nothing can be learned of it.
        SettingError: the label is no column.
    """
    table = read_table(data, setting="--data")
    if label is not None and label not in table.columns:
        raise SettingError("--label", f"{data} has no column '{label}'", nearest(label, table.columns))
    rows = Rows(Path(data), table.columns, table.rows)
    cards = (tabular_classification.CARD, tabular_regression.CARD)
    proposals = [(card, card.recognize(rows, {"label": label} if label else {})) for card in cards]
    suitable = [(card, proposal) for card, proposal in proposals if proposal is not None]
    if not suitable:
        raise DataError(
            "--data",
            f"{data} has no column of classes or numbers to predict from others",
            "Name it: --label COLUMN",
        )
    card, proposal = max(suitable, key=lambda each: each[1].score)
    return {"task": card.name, "data": {"train": data, **proposal.data}}


def _text_card(data: str, rows: dict[str, Any]) -> Card:
    """Return the task of texts with labels: the one that suits them better, of a class and of a number."""
    given = {"text": rows["text"], "label": rows["label"]}
    try:
        table = read_table(data, setting="--data")
    except DataError:
        return text_classification.CARD  # what reads it for the run says what is wrong with it
    seen = Rows(Path(data), table.columns, table.rows)
    proposals = {
        card: card.recognize(seen, given) for card in (text_classification.CARD, text_regression.CARD)
    }
    suitable = {card: each.score for card, each in proposals.items() if each is not None}
    return max(suitable, key=lambda card: suitable[card], default=text_classification.CARD)


def _tagged(
    data: str, text: str | Sequence[str] | None, label: str | None, columns: Sequence[str]
) -> dict[str, Any] | None:
    """Return the task of rows whose words have tags or which have labelled spans, and the settings of its rows; None for other rows.

    The file is read where a column is named as such a one is: `snugfit init` looks at more.
    """
    given = {name: value for name, value in (("text", text), ("label", label)) if value is not None}
    if label is None and not set(columns) & set(token_classification.TAGS):
        return None
    try:
        table = read_table(data, setting="--data")
    except DataError:
        return None  # what reads it for the run says what is wrong with it
    proposal = token_classification.CARD.recognize(Rows(Path(data), table.columns, table.rows), given)
    if proposal is None:
        return None
    return {"task": token_classification.CARD.name, "data": {"train": data, **proposal.data}}


def _recognized(data: str, overrides: Iterable[str]) -> dict[str, Any] | None:
    """Return the task that suits rows best of those whose models are read from files, and the settings of its rows, as `snugfit init` does.

    A language model is none of them: texts alone may as well lack the column of their labels.
    """
    given = apply_overrides({}, overrides, Places())
    fixed = given.get("data")
    try:
        table = read_table(data, setting="--data")
    except DataError:
        return None  # what reads it for the run says what is wrong with it
    rows = Rows(Path(data), table.columns, table.rows)
    proposals = {
        name: card.recognize(rows, fixed if isinstance(fixed, Mapping) else {})
        for name, card in discover().items()
        if card.reads_models and name == given.get("task", name) and name != causal_lm.CARD.name
    }
    suitable = {name: each for name, each in proposals.items() if each is not None and each.score >= _SURE}
    if not suitable:
        return None
    name = max(suitable, key=lambda name: suitable[name].score)
    best = suitable[name]
    return {"task": name, "data": {"train": data, **best.data}, **best.settings}


def _columns(data: str) -> tuple[str, ...]:
    """Return the columns of a file, from its first rows."""
    path = Path(data)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            if usual := DELIMITERS.get(path.suffix.lower()):
                delimiter = delimiter_of(file.readline(), usual)
                file.seek(0)
                columns = tuple(next(csv.reader(file, delimiter=delimiter, strict=True)))
            else:
                rows = [parse_json(line) for line in itertools.islice(file, _ROWS) if line.strip()]
                columns = tuple(dict.fromkeys(key for row in rows for key in dict(row)))
    except (OSError, ValueError, TypeError, StopIteration, csv.Error):
        columns = ()
    if columns:
        return columns
    # reading the whole file says what is wrong with it, or finds that only some rows are
    table = read_table(data, setting="--data")
    if not table.columns:
        fault = table.faults[0]
        raise DataError(
            "--data",
            f"{data} has no row that can be used; line {fault.line} has {fault.detail}",
            "Correct it, or name another file.",
        )
    return table.columns


def _text(text: str | Sequence[str] | None, columns: tuple[str, ...] | None, data: str) -> tuple[str, ...]:
    if text is None:
        return (_default("--text", _TEXT, "the columns that hold the text", columns, data),)
    if not isinstance(text, str):
        asked = tuple(text)
    elif columns is not None and text in columns:
        asked = (text,)
    else:
        asked = tuple(part.strip() for part in text.split(","))
    for column in asked:
        _check("--text", column, columns, data)
    return asked


def _label(label: str | None, columns: tuple[str, ...] | None, data: str) -> str:
    if label is None:
        return _default("--label", _LABEL, "the column that holds the labels", columns, data)
    _check("--label", label, columns, data)
    return label


def _default(option: str, usual: str, what: str, columns: tuple[str, ...] | None, data: str) -> str:
    if columns is None or usual in columns:
        return usual
    raise SettingError(option, f"name {what}: {data} has no column '{usual}'", _listed(columns))


def _check(option: str, column: str, columns: tuple[str, ...] | None, data: str) -> None:
    if columns is None or column in columns:
        return
    guess = nearest(column, columns)
    hint = f"{guess} " if guess.startswith("Did you mean") else ""
    raise DataError(option, f"{data} has no column '{column}'", f"{hint}{_listed(columns)}")


def _listed(columns: Sequence[str]) -> str:
    return f"Its columns are {', '.join(columns[:20])}{' and more' if len(columns) > 20 else ''}."
