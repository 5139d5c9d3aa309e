"""The result of trying micro-batches: each of them, the largest that fits and the fastest, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from snugfit.results.shown import Shown
from snugfit.results.tool_results import keep
from snugfit.step.micro_batch_sizes import BATCH_NORM
from snugfit.step.step import Step

TOOL = "find_batch"
FITS = "fits"
OUT_OF_MEMORY = "ran out of memory"
TOO_LARGE = "does not fit"
PREDICTED = "does not fit, as predicted from smaller ones"


@dataclass(frozen=True)
class Size:
    """A micro-batch, with its memory and time.

    It has the most bytes that are in use with it, None where memory ran out before that was known, and the
    time of each update of the window that was timed.
    """

    micro_batch: int
    verdict: str
    peak_bytes: int | None
    examples_per_second: float | None = None
    seconds: tuple[float, ...] = ()

    @property
    def fits(self) -> bool:
        """Return whether a run may use it."""
        return self.verdict == FITS


@dataclass(frozen=True, repr=False)
class FoundBatch(Shown):
    """Micro-batches from the smallest to the whole window.

    `standing_bytes` are there at every moment: weights, buffers and states. `budget_bytes` is what they and all else may take
    together, None where only the device knows. `longest`: whether the window was of the largest examples there are. `name` is of the
    model or the recipe, `identity` what it was made with.
    """

    rows: tuple[Size, ...]
    largest: int
    fastest: int
    window_rows: int
    standing_bytes: int
    budget_bytes: int | None
    device: str
    message: str
    longest: bool
    name: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict)

    def summary_lines(self) -> list[str]:
        """Return the verdict, and each size with its speed or the reason why it does not fit."""
        sizes = [
            f"  {row.micro_batch:>6} examples: "
            + (
                f"{row.examples_per_second:,.0f} examples/s"
                if row.fits and row.examples_per_second
                else row.verdict
            )
            for row in self.rows
        ]
        return [f"FoundBatch: {self.message}", *sizes]

    def page(self) -> str:
        from snugfit.tools.find_batch.page import render_batch_page  # which is of this

        return render_batch_page(self.name, self)

    def save(self, folder: str | Path) -> Path:
        """Write `found.json` and a page into a folder, made where it is not there; return the page.

        Raises:
            RunFolderError: they cannot be written.
        """
        from snugfit.tools.find_batch.page import write_batch_page  # which is of this

        folder = Path(folder)
        keep(folder, TOOL, self.identity, self.message, self.as_dict())
        return write_batch_page(self.name, self, folder)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(self)
        del values["name"], values["identity"]
        sizes = {"micro_batch_largest": values.pop("largest"), "micro_batch_fastest": values.pop("fastest")}
        return {**sizes, **values, "rows": [{**asdict(row), "fits": row.fits} for row in self.rows]}


def choose(
    step: Step, rows: tuple[Size, ...], window: int, standing: int, budget: int | None, longest: bool
) -> FoundBatch:
    """Return the largest and the fastest of those that fit, of a window of so many rows."""
    fitting = [row for row in rows if row.fits]
    largest = max(fitting, key=lambda row: row.micro_batch)
    fastest = max(fitting, key=lambda row: (row.examples_per_second or 0.0, row.micro_batch))
    return FoundBatch(
        rows,
        largest.micro_batch,
        fastest.micro_batch,
        window,
        standing,
        budget,
        str(step.device),
        _message(largest, fastest, window, longest, step.has_batch_norm),
        longest,
    )


def _message(largest: Size, fastest: Size, window: int, longest: bool, batch_norm: bool) -> str:
    text = f"micro-batches of {largest.micro_batch} are the largest that fit, of a window of {window}"
    if fastest.examples_per_second is None:
        text += "; no update was applied, so nothing is said of their speed"
    elif fastest is largest:
        text += f", and the fastest: {_digits(fastest.examples_per_second)} examples/s"
    else:
        assert largest.examples_per_second is not None
        gain = fastest.examples_per_second / largest.examples_per_second - 1
        text += f", and {fastest.micro_batch} the fastest: {_digits(fastest.examples_per_second)} examples/s, {gain:.1%} more"
        if max(fastest.seconds) >= min(largest.seconds):
            text += ", which is within the spread of the times"
    if not longest:
        text += "; the sizes of the examples are not known, so it was tried on the first ones"
    return f"{text}; {BATCH_NORM}" if batch_norm else text


def _digits(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
