"""The counts of rows that were read, left out and cut, for a run's record and for a reader."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from snugfit.units import counted

STREAMED = "streamed examples"
"""The unit of examples that are read as they come."""


@dataclass(frozen=True)
class DataReport:
    """Counts of a data set, in rows or in blocks of tokens, after validation, splitting and tokenisation.

    `labels` counts training rows by label name (evaluation's rows, where only those were read), `skipped`
    rows left out by reason, `form` what the rows were recognised as, `baseline` the scores on the validation rows of who learns nothing. Token counts are
    those of whole texts, before the `truncated` ones were cut to `max_length`; `windowed` texts are not cut but read in `windows` windows of that length.
    """

    train: int
    validation: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    truncated: int = 0
    max_length: int = 0
    tokens_total: int = 0
    tokens_max: int = 0
    tokens_median: float = 0.0
    warnings: tuple[str, ...] = ()
    unit: str = "rows"
    form: str = ""
    windowed: int = 0
    windows: int = 0
    baseline: Mapping[str, float] = field(default_factory=dict)

    def with_tokens(self, lengths: Sequence[int], max_length: int, *, cut: bool = True) -> DataReport:
        """Return the counts with those of tokens.

        Args:
            lengths: tokens of each text as it is whole.
            cut: whether texts of more than `max_length` tokens are cut to it.
        """
        return replace(
            self,
            truncated=sum(length > max_length for length in lengths) if cut else 0,
            max_length=max_length,
            tokens_total=sum(lengths),
            tokens_max=max(lengths, default=0),
            tokens_median=float(statistics.median(lengths)) if lengths else 0.0,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON holds them."""
        return {
            "train": self.train,
            "validation": self.validation,
            "skipped": dict(self.skipped),
            "labels": dict(self.labels),
            "truncated": self.truncated,
            "max_length": self.max_length,
            "tokens_total": self.tokens_total,
            "tokens_max": self.tokens_max,
            "tokens_median": self.tokens_median,
            "warnings": list(self.warnings),
            "unit": self.unit,
            **({"form": self.form} if self.form else {}),
            **({"windowed": self.windowed, "windows": self.windows} if self.windowed else {}),
            **({"baseline": dict(self.baseline)} if self.baseline else {}),
        }

    def lines(self) -> list[str]:
        r"""Return the counts in words, one line for each thing a person should see.

        >>> print(*DataReport(8, 2, {"empty text": 1}, {"a": 4, "b": 4}).lines(), sep="\n")
        8 rows to train on, 2 to validate on, 1 left out: empty text (1)
        labels: a 4, b 4
        """
        rows = f"{self.validation:,} {self.unit}"
        if self.train:
            rows = f"{self.train:,} {self.unit} to train on, {self.validation:,} to validate on"
        if self.skipped:
            reasons = ", ".join(f"{reason} ({count:,})" for reason, count in self.skipped.items())
            rows += f", {sum(self.skipped.values()):,} left out: {reasons}"
        lines = [rows]
        if self.labels:
            shown = [f"{name} {count:,}" for name, count in list(self.labels.items())[:20]]
            more = f" and {len(self.labels) - 20} more" if len(self.labels) > 20 else ""
            lines.append(f"labels: {', '.join(shown)}{more}")
        if self.unit == "blocks":
            lines.append(f"tokens: {self.tokens_total:,}, {self.max_length} in each of the {self.unit}")
        elif self.tokens_max:
            cut = f"{self.truncated:,} texts cut to {self.max_length}"
            if self.windowed:
                cut = f"{self.windowed:,} texts read in {self.windows:,} windows of {self.max_length}"
            lines.append(f"tokens: median {self.tokens_median:g}, longest {self.tokens_max:,}; {cut}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        return lines


def source_words(source: Mapping[str, Any]) -> str:
    """Return what one of several sources is of a run's examples.

    >>> source_words({"name": "chats", "rows": 900, "share": 0.75, "epochs": 2.5})
    'chats: 75% of the examples, 2.5 epochs of 900 rows'
    >>> source_words({"name": "crawl", "rows": 100_000, "share": 0.5, "epochs": 0.0003})
    'crawl: 50% of the examples, 0.0003 epochs of 100,000 rows'
    """
    epochs = counted(float(source["epochs"]), "epoch")
    return f"{source['name']}: {100 * source['share']:.3g}% of the examples, {epochs} of {counted(source['rows'], 'row')}"


def has_epochs(data: Mapping[str, Any]) -> bool:
    """Return whether what a run says of its data has epochs: a stream has no length, and so none.

    >>> has_epochs({"train": 800}), has_epochs({"train": 800, "unit": STREAMED})
    (True, False)
    """
    return data.get("unit") != STREAMED
