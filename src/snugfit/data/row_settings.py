"""The settings of rows that every task reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snugfit.data.bad_rows import check_policy
from snugfit.data.examples import Examples
from snugfit.data.sources import RowSource
from snugfit.data.split import check_fraction, split_rows
from snugfit.errors import SettingError


class Sides(NamedTuple):
    """The examples to train on and those to validate on.

    `shown` are the places, in the last part that was read, of rows to show: those held out, or those to train on where none are.
    """

    train: Examples
    validation: Examples
    shown: Sequence[int]


@dataclass(frozen=True)
class RowSettings:
    """The part of a recipe's `data` that all tasks on text share.

    Several text columns are joined by a line break. `validation` is a fraction of the training rows, a source of its own,
    or None.
    """

    train: RowSource
    text: tuple[str, ...] = ("text",)
    validation: float | RowSource | None = 0.1
    max_length: int = 128
    bad_rows: str = "fail"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.text:
            raise SettingError(
                "data.text", "no column", "Name the column that holds the text, or a list of columns."
            )
        check_policy(self.bad_rows)
        if isinstance(self.validation, (int, float)):
            check_fraction(self.validation)

    @property
    def sources(self) -> list[tuple[str, RowSource]]:
        """The setting and the source of the training rows, and of validation rows that have a source of their own."""
        own = [] if self.fraction is not None or self.validation is None else [self.validation]
        return [("data.train", self.train), *(("data.validation", source) for source in own)]  # type: ignore[list-item]

    @property
    def fraction(self) -> float | None:
        """The part of the training rows to validate on, where there is no source of its own for that."""
        return self.validation if isinstance(self.validation, (int, float)) else None

    def sides(self, parts: Sequence[Examples]) -> Sides:
        """Return the sides of examples that are read of each of `sources`: one that is split, of each source in proportion, or two."""
        train, held_out = parts[0], parts[1] if len(parts) > 1 else parts[0].at(())
        shown: Sequence[int] = range(len(parts[-1]))
        if self.fraction is not None and len(train) > 1:
            rows, shown = split_rows(train.numbers, self.fraction, self.seed)
            train, held_out = train.at(rows), train.at(shown)
        return Sides(train, held_out, shown)
