"""Settings that are fixed before there is a recipe, and how the user gave them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from snugfit.errors import DataError, nearest
from snugfit.recipe.overrides import apply_overrides
from snugfit.recipe.strict_yaml import Places
from snugfit.tasks.data_section import COLUMNS
from snugfit.tasks.recognition import PLAIN_TEXT, Rows, columns_of

_OF_THE_RECIPE = {"name", "task", "model", "from_scratch", "data", "loss", "preset"}
"""Sections that decide what a recipe is about; any other setting may differ from run to run."""
_MOST_LISTED = 20


@dataclass(frozen=True)
class Request:
    """Settings that are fixed beforehand.

    Args:
        overrides: as `key=value`.
        options: of a command, by the setting that each gives: its name and its value. Columns may have commas between them.
        by_option: whether the command has such options, given or not.
    """

    overrides: tuple[str, ...] = ()
    options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    by_option: bool = False

    @cached_property
    def given(self) -> dict[str, Any]:
        """The settings as a recipe has them."""
        return apply_overrides({}, self._settings(()), Places())

    def data(self, rows: Rows) -> dict[str, Any]:
        """Return the settings of `data`, for rows whose columns an option may list."""
        settings: dict[str, Any] = (
            apply_overrides({}, self._settings(rows.columns), Places()).get("data") or {}
        )
        return settings

    def of_recipe(self, columns: Sequence[str] = ()) -> list[str]:
        """Return settings that decide what the recipe is about, as `key=value`."""
        return [text for text in self._settings(columns) if _section(text) in _OF_THE_RECIPE]

    def of_run(self) -> list[str]:
        """Return settings that a run over the same recipe may have another value of, as `key=value`."""
        return [text for text in self.overrides if _section(text) not in _OF_THE_RECIPE]

    def name(self, setting: str) -> str:
        """Return the setting as the user gave it: by the option of a command, or by its own name."""
        return self.options[setting][0] if setting in self.options else setting

    def to_name(self, setting: str) -> str:
        """Return what names a column of that setting, in the form in which others were given."""
        option = f"--{setting.removeprefix('data.')}"
        has_option = self.by_option and setting in ("data.text", "data.label")
        return f"{option} COLUMN" if has_option else f"{setting}=COLUMN"

    def check_columns(self, rows: Rows) -> None:
        """See that columns that are fixed are there.

        Raises:
            DataError: one is not, or the rows have none.
        """
        data = self.data(rows)
        fixed = [setting for setting in COLUMNS if data.get(setting)]
        if fixed and rows.path.suffix.lower() == PLAIN_TEXT:
            raise DataError(
                self.name(f"data.{fixed[0]}"),
                f"{rows.path} is plain text, so it has no columns",
                "Leave it out, or name a table.",
            )
        if fixed and rows.in_folders:
            raise DataError(
                self.name(f"data.{fixed[0]}"),
                f"{rows.path} is a folder of files by their classes, so it has no columns",
                "Leave it out, or name a table with a column of paths.",
            )
        for setting in fixed:
            for column in columns_of(data[setting]):
                if column not in rows.columns:
                    guess = nearest(column, rows.columns)
                    hint = f"{guess} " if guess.startswith("Did you mean") else ""
                    raise DataError(
                        self.name(f"data.{setting}"),
                        f"{rows.path} has no column '{column}'",
                        f"{hint}Its columns are {_listed(rows.columns)}.",
                    )

    def _settings(self, columns: Sequence[str]) -> list[str]:
        """Return all settings as `key=value`, those of options last."""
        named = {setting: value for setting, (_, value) in self.options.items()}
        values: dict[str, Any] = {
            setting: split_columns(value, columns) if setting == "data.text" else value
            for setting, value in named.items()
        }
        return [*self.overrides, *(f"{setting}={json.dumps(value)}" for setting, value in values.items())]


def split_columns(text: str, columns: Sequence[str]) -> list[str]:
    """Return columns as an option gives them: one, or several with commas between them.

    >>> split_columns("title,text", ["title", "text"]), split_columns("title,text", ["title,text"])
    (['title', 'text'], ['title,text'])
    """
    return [text] if text in columns else [part.strip() for part in text.split(",")]


def _section(override: str) -> str:
    """Return the first key of a setting.

    >>> _section("train.epochs=3"), _section("techniques=[ema]")
    ('train', 'techniques')
    """
    return override.partition("=")[0].partition(".")[0]


def _listed(columns: Sequence[str]) -> str:
    more = " and more" if len(columns) > _MOST_LISTED else ""
    return f"{', '.join(columns[:_MOST_LISTED])}{more}"
