"""A recipe for a data file, when there is none yet."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from snugfit.data.file_formats import DELIMITERS, delimiter_of
from snugfit.data.hub_rows import is_saved
from snugfit.data.mask_folders import mask_folders
from snugfit.data.sources import Table, read_table
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
    multi_label_classification,
    segmentation,
    tabular_classification,
    tabular_regression,
    text_classification,
    text_regression,
    token_classification,
)
from snugfit.tasks.recognition import PLAIN_TEXT, Recognition, Rows
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
    tree = {"model": model, **_task_and_rows(_File(data), text, label, model, overrides)}
    return build(tree, overrides, places, folder=Path.cwd(), name=name, allow_code=True)


@dataclass(frozen=True)
class _File:
    """A data file, which is read whole once, and only where its first rows do not say enough."""

    data: str

    @cached_property
    def table(self) -> Table:
        """The rows with their columns and faults.

        Raises:
            DataError: it cannot be read.
        """
        return read_table(self.data, setting="--data")

    @property
    def rows(self) -> Rows:
        """The rows that can be read.

        Raises:
            DataError: it cannot be read.
        """
        return Rows(Path(self.data), self.table.columns, self.table.rows)

    @property
    def usable(self) -> Rows | None:
        """The rows; None where it cannot be read: what reads it for the run says what is wrong with it."""
        try:
            return self.rows
        except DataError:
            return None


def _task_and_rows(
    file: _File, text: str | Sequence[str] | None, label: str | None, model: str, overrides: Iterable[str]
) -> dict[str, Any]:
    """Return the task of rows, and the settings that name them.

    Raises:
        SettingError: a column is not there, or has to be named.
        DataError: the file cannot be read.
    """
    data, path = file.data, Path(file.data)
    named = text is not None or label is not None
    folder = path.is_dir() and not is_saved(path)
    if named and (folder or path.suffix.lower() == PLAIN_TEXT):
        kind = "a folder of pictures" if folder else "plain text"
        raise DataError(
            "--data",
            f"{data} is {kind}, so it has no columns for --text and --label",
            "Leave them out, or name a table.",
        )
    if folder:
        masked = model in segmentation.NETWORKS or mask_folders(path) is not None
        return _of(segmentation.CARD if masked else image_classification.CARD, {"train": data})
    if path.suffix.lower() == PLAIN_TEXT:
        _ = file.table  # says what is wrong with it
        return _of(causal_lm.CARD, {"train": data})
    if model in forecasting.NETWORKS:
        return _series(file, label)
    if model in NETWORKS:
        return _table(file, label)
    columns = None if is_python_path(data) else _columns(file)
    if columns is not None and (tagged := _tagged(file, text, label, columns)):
        return tagged
    named = named or {_TEXT, _LABEL} <= set(columns or ())
    if columns is not None and not named and (recognized := _recognized(file, overrides)):
        return recognized
    rows = {"train": data, "text": _text(text, columns, data), "label": _label(label, columns, data)}
    return _of(text_classification.CARD, rows) if columns is None else _text_task(file, rows)


def _of(card: Card, rows: Mapping[str, Any]) -> dict[str, Any]:
    return {"task": card.name, "data": rows}


def _series(file: _File, label: str | None) -> dict[str, Any]:
    """Return the task of a long table of series, and the settings of its rows.

    Raises:
        DataError: no series were recognised.
        SettingError: the label is no column.
    """
    data, proposal = file.data, forecasting.CARD.recognize(file.rows, _labelled(file, label))
    if proposal is None:
        raise DataError(
            "--data",
            f"{data} has no column of times at which each series has one row",
            f"Name its columns in a recipe: snugfit init {data} task=forecasting data.time=COLUMN data.series=COLUMN",
        )
    return _of(forecasting.CARD, {"train": data, **proposal.data})


def _table(file: _File, label: str | None) -> dict[str, Any]:
    """Return the task of a table, and the settings of its rows.

    Raises:
        DataError: nothing can be learned of it.
        SettingError: the label is no column.
    """
    given = _labelled(file, label)
    best = _best((tabular_classification.CARD, tabular_regression.CARD), file.rows, given)
    if best is None:
        raise DataError(
            "--data",
            f"{file.data} has no column of classes or numbers to predict from others",
            "Name it: --label COLUMN",
        )
    card, proposal = best
    return _of(card, {"train": file.data, **proposal.data})


def _labelled(file: _File, label: str | None) -> dict[str, Any]:
    """Return the label as a setting of `data`, where it is given.

    Raises:
        SettingError: it is no column.
    """
    if label is None:
        return {}
    columns = file.rows.columns
    if label not in columns:
        raise SettingError("--label", f"{file.data} has no column '{label}'", nearest(label, columns))
    return {"label": label}


def _best(
    cards: Iterable[Card], rows: Rows, given: Mapping[str, Any], least: float = 0.0
) -> tuple[Card, Recognition] | None:
    """Return the task that suits rows best, of those with a score of at least `least`, and what it makes of them."""
    proposals = [(card, card.recognize(rows, given)) for card in cards]
    suitable = [(card, each) for card, each in proposals if each is not None and each.score >= least]
    return max(suitable, key=lambda each: each[1].score, default=None)


def _text_task(file: _File, rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task of texts with labels that suits them best, of a class, of any number of labels and of a number, and the settings of its rows."""
    given = {"text": rows["text"], "label": rows["label"]}
    cards = (text_classification.CARD, text_regression.CARD, multi_label_classification.CARD)
    best = None if file.usable is None else _best(cards, file.usable, given)
    if best is None:
        return _of(text_classification.CARD, rows)
    card, proposal = best
    separator = {key: value for key, value in proposal.data.items() if key == "separator"}
    return _of(card, {**rows, **separator})


def _tagged(
    file: _File, text: str | Sequence[str] | None, label: str | None, columns: Sequence[str]
) -> dict[str, Any] | None:
    """Return the task of rows whose words have tags or which have labelled spans, and the settings of its rows; None for other rows.

    The file is read where a column is named as such a one is: `snugfit init` looks at more.
    """
    given = {name: value for name, value in (("text", text), ("label", label)) if value is not None}
    if label is None and not set(columns) & set(token_classification.TAGS):
        return None
    proposal = None if file.usable is None else token_classification.CARD.recognize(file.usable, given)
    if proposal is None:
        return None
    return _of(token_classification.CARD, {"train": file.data, **proposal.data})


def _recognized(file: _File, overrides: Iterable[str]) -> dict[str, Any] | None:
    """Return the task that suits rows best of those whose models are read from files, and the settings of its rows, as `snugfit init` does.

    A language model is none of them: texts alone may as well lack the column of their labels.
    """
    given = apply_overrides({}, overrides, Places())
    fixed = given.get("data")
    cards = [
        card
        for name, card in discover().items()
        if card.reads_models and name == given.get("task", name) and name != causal_lm.CARD.name
    ]
    if file.usable is None:
        return None
    best = _best(cards, file.usable, fixed if isinstance(fixed, Mapping) else {}, _SURE)
    if best is None:
        return None
    card, proposal = best
    return {**_of(card, {"train": file.data, **proposal.data}), **proposal.settings}


def _columns(source: _File) -> tuple[str, ...]:
    """Return the columns of a file, from its first rows."""
    path, data = Path(source.data), source.data
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
    if not source.table.columns:
        fault = source.table.faults[0]
        raise DataError(
            "--data",
            f"{data} has no row that can be used; line {fault.line} has {fault.detail}",
            "Correct it, or name another file.",
        )
    return source.table.columns


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
