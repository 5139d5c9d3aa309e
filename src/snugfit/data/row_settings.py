"""The settings of rows that every task reads."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from snugfit.data.bad_rows import check_policy
from snugfit.data.examples import Examples
from snugfit.data.sources import RowSource
from snugfit.data.splits.hold_out import SHARES, HoldOut, share_of
from snugfit.data.splits.leaks import Inputs, LeakSettings
from snugfit.data.splits.sides import Sides, Validation, check_validation, make_sides, split_rows
from snugfit.errors import SettingError


@dataclass(frozen=True)
class RowSettings:
    """The part of a recipe's `data` that all tasks on text share.

    Several text columns are joined by a line break. `validation` is a share of the training rows, a source of its own,
    or None.
    """

    train: RowSource
    text: tuple[str, ...] = ("text",)
    validation: Validation = 0.1
    max_length: int = 128
    bad_rows: str = "fail"
    seed: int = 0
    leaks: LeakSettings = field(default_factory=LeakSettings)

    def __post_init__(self) -> None:
        if not self.text:
            raise SettingError(
                "data.text", "no column", "Name the column that holds the text, or a list of columns."
            )
        check_policy(self.bad_rows)
        check_validation(self.validation)

    @property
    def sources(self) -> list[tuple[str, RowSource]]:
        """The setting and the source of the training rows, and of validation rows that have a source of their own."""
        own = [] if self.share is not None or self.validation is None else [self.validation]
        return [("data.train", self.train), *(("data.validation", source) for source in own)]  # type: ignore[list-item]

    @property
    def share(self) -> float | HoldOut | None:
        """The part of the training rows to validate on, where there is no source of its own for that."""
        return self.validation if isinstance(self.validation, SHARES) else None

    def rows_apart(self, count: int) -> tuple[Sequence[int], Sequence[int]]:
        """Return the places of both sides of a source of so many rows without classes; one row is not split."""
        if self.share is None or count < 2:
            return range(count), ()
        return split_rows([0] * count, share_of(self.share), self.seed)

    def sides(
        self,
        parts: Sequence[Examples],
        inputs: Inputs | None = None,
        classes: Sequence[Hashable] | None = None,
    ) -> Sides:
        """Return the sides of examples that are read of each of `sources`, as of `make_sides`."""
        return make_sides(parts, self.validation, self.seed, inputs=inputs, leaks=self.leaks, classes=classes)
