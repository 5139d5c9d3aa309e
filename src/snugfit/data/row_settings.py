"""The settings of rows that every task reads."""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.data.bad_rows import check_policy
from snugfit.data.sources import RowSource
from snugfit.data.split import check_fraction
from snugfit.errors import SettingError


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
