"""The micro-batches that were tried on a device, as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snugfit.report.charts import BYTES
from snugfit.report.html import facts, figures, table
from snugfit.report.page import document, replace_page
from snugfit.report.series import format_number
from snugfit.report.svg import Chart, Dot, LogFrame, Series, escape, figure
from snugfit.tools.find_batch.result import FoundBatch, Size
from snugfit.units import counted, format_bytes

PAGE = "find_batch.html"


def write_batch_page(name: str, result: FoundBatch, folder: Path) -> Path:
    """Write the page into `folder`, replacing an older one at once, and return its path.

    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(folder / PAGE, render_batch_page(name, result))


def render_batch_page(name: str, result: FoundBatch) -> str:
    """Return the page as text."""
    budget = "what the device has" if result.budget_bytes is None else format_bytes(result.budget_bytes)
    headline = figures(
        [
            ("Largest that fits", f"{result.largest:,}", _at(result, result.largest)),
            ("Fastest", f"{result.fastest:,}", _at(result, result.fastest)),
            ("Budget", budget, result.device),
            ("At every moment", format_bytes(result.standing_bytes), "weights, buffers, states"),
        ]
    )
    about = [
        (
            "window",
            f"{counted(result.window_rows, 'example')}, the {'largest there are' if result.longest else 'first ones'}",
        ),
        ("updates timed of each size", len(next((row.seconds for row in result.rows if row.seconds), ()))),
        ("device", result.device),
    ]
    body = (
        f"<header><p class=about>Micro-batches</p><h1>{escape(name)}</h1><p>{escape(result.message[:1].upper() + result.message[1:])}.</p>{headline}</header>",
        _drawn(result),
        f"<section><h2>What was tried</h2>{_table(result.rows)}</section>",
        f"<section><h2>How it was found</h2>{facts(about)}</section>",
        "<footer>Made by Snugfit. Memory is that of tensors, at its peak over an update and an evaluation.</footer>",
    )
    return document(f"{name} · micro-batch · Snugfit", body)


def _at(result: FoundBatch, size: int) -> str:
    row = next(row for row in result.rows if row.micro_batch == size)
    peak = "" if row.peak_bytes is None else format_bytes(row.peak_bytes)
    return f"{_speed(row)} examples/s, {peak}" if row.seconds else peak


def _speed(row: Size) -> str:
    return "" if row.examples_per_second is None else format_number(row.examples_per_second)


def _table(rows: Sequence[Size]) -> str:
    head = ("micro-batch", "examples/s", "memory", "verdict")
    return table(
        head,
        [
            (
                f"{row.micro_batch:,}",
                _speed(row),
                "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
                row.verdict,
            )
            for row in rows
        ],
        numbers=3,
    )


def _drawn(result: FoundBatch) -> str:
    """Speed and memory over the size; nothing where there is one size alone."""
    first, last = result.rows[0].micro_batch, result.rows[-1].micro_batch
    if first == last:
        return ""
    frame = LogFrame(start=first, end=last, base=2, noun="micro-batch", x_name="micro-batch")
    timed = [(row, row.examples_per_second) for row in result.rows if row.examples_per_second is not None]
    speed = Series(
        "examples/s",
        [(row.micro_batch, value) for row, value in timed],
        dots=[
            Dot(
                row.micro_batch,
                value,
                f"{row.micro_batch}: {value:,.1f} examples/s",
                row.micro_batch == result.fastest,
            )
            for row, value in timed
        ],
    )
    charts = (Chart("Speed", "examples/s", [speed], from_zero=True), _memory(result))
    drawn = "".join(figure(chart, frame, first=not place) for place, chart in enumerate(charts))
    return f"<section><h2>Over the size</h2><div class=charts>{drawn}</div></section>"


def _memory(result: FoundBatch) -> Chart:
    known = [(row, row.peak_bytes) for row in result.rows if row.peak_bytes is not None]
    unit, size = next(each for each in BYTES if max(peak for _, peak in known) >= each[1])

    def series(name: str, rows: list[tuple[Size, int]], tone: int) -> Series:
        dots = [
            Dot(
                row.micro_batch,
                peak / size,
                f"{row.micro_batch}: {format_bytes(peak)}, {row.verdict}",
                row.micro_batch == result.largest,
            )
            for row, peak in rows
        ]
        return Series(name, [(dot.x, dot.y) for dot in dots], tone, dots)

    drawn = [series("fits", [pair for pair in known if pair[0].fits], 1)]
    if any(not row.fits for row, _ in known):
        drawn.append(series("does not fit", [pair for pair in known if not pair[0].fits], 6))
    budget, highest = result.budget_bytes, max(peak for _, peak in known)
    if budget is not None and budget <= 2 * highest:  # else it would flatten all that there is to see
        line = [(float(row.micro_batch), budget / size) for row in (result.rows[0], result.rows[-1])]
        drawn.append(Series("budget", line, 8))
    return Chart("Memory", unit, drawn, from_zero=True)
