"""A learning-rate range test as one self-contained page, and as a picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from snugfit.errors import RunFolderError
from snugfit.report.chart_pictures import require_matplotlib
from snugfit.report.html import facts, table
from snugfit.report.page import document, replace_page
from snugfit.report.series import format_number
from snugfit.report.svg import Chart, Dot, LogFrame, Series, escape, figure
from snugfit.system.disk_files import whole_file
from snugfit.tools.find_lr.lr_rules import RateReading, Suggestion
from snugfit.tools.find_lr.measure import RangeTest

PAGE = "find_lr.html"
ABOVE = 0.5
"""Part of the fall that is shown above where the loss began: what follows behind the divergence would flatten it."""


def write_lr_page(
    name: str, test: RangeTest, parts: Mapping[str, RangeTest], settings: Mapping[str, float], folder: Path
) -> Path:
    """Write the page into `folder`, replacing an older one at once, and return its path.

    Args:
        parts: the tests of single parts of the model, by their names.
        settings: of the optimizer, as the test recommends them.
    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(folder / PAGE, render_lr_page(name, test, parts, settings))


def render_lr_page(
    name: str, test: RangeTest, parts: Mapping[str, RangeTest], settings: Mapping[str, float]
) -> str:
    """Return the page as text."""
    about = [
        ("updates", len(test.curve)),
        ("ended by", test.stopped),
        ("updates that were not applied", test.num_skipped),
        *((f"optimizer’s {setting}", format_number(value)) for setting, value in settings.items()),
    ]
    body = (
        f"<header><p class=about>Learning-rate range test</p><h1>{escape(name)}</h1>"
        f'<p class=identity><span class="status {"finished" if test.learning_rate else "failed"}">'
        f"{_rate(test) or 'No rate'}</span></p>{_verdict(test)}</header>",
        f"<section><h2>The loss over the rate</h2><div class=charts>{_drawn('Loss', test, True)}</div></section>",
        _suggested(test),
        _parts(parts),
        f"<section><h2>How it was found</h2>{facts(about)}</section>",
        "<footer>Made by Snugfit. The loss of an update is that before it, so it speaks of the rates up to the one before."
        "</footer>",
    )
    return document(f"{name} · learning rate · Snugfit", body, ".note+.scroll{margin:12px 0 28px}")


def _verdict(test: RangeTest) -> str:
    """Return the verdict, or each reason why there is none with what to do."""
    if not test.doubts:
        return f"<p>{escape(test.verdict)}.</p>"
    reasons = "".join(f"<li>{escape(each[:1].upper() + each[1:])}.</li>" for each in test.doubts)
    return f"<p>No rate is recommended, and none is written:</p><ul>{reasons}</ul>"


def _rate(test: RangeTest) -> str:
    return "" if test.learning_rate is None else _digits(test.learning_rate)


def _digits(rate: float) -> str:
    """Return two, as many as a range test can tell."""
    return format_number(float(f"{rate:.2g}"))


def _drawn(title: str, test: RangeTest, first: bool) -> str:
    curve = test.curve
    if len(curve) < 2:
        return f"<p>{escape(title)}: {escape(test.stopped)}.</p>"
    frame = LogFrame(
        start=curve[0].learning_rate,
        end=curve[-1].learning_rate,
        noun="learning rate",
        x_name="learning rate",
    )
    series = [
        Series("each update", [(each.learning_rate, each.loss) for each in curve], faint=True),
        Series("smoothed", [(each.learning_rate, each.smoothed) for each in curve], tone=1),
    ]
    for tone, (rule, each) in enumerate(test.suggestions.items(), 2):
        label = f"{rule} {_digits(each.learning_rate)}"
        dot = Dot(
            each.learning_rate, _height(curve, each), f"{label}: {each.reason}", rule == test.recommended
        )
        series.append(Series(label, [], tone=tone, dots=[dot]))
    return figure(Chart(title, "", series, wide=first, limits=_limits(test)), frame, first=first)


def _height(curve: tuple[RateReading, ...], suggestion: Suggestion) -> float:
    """Return the smoothed loss at a suggested rate."""
    return min(curve, key=lambda each: abs(math.log(each.learning_rate / suggestion.learning_rate))).smoothed


def _limits(test: RangeTest) -> tuple[float, float] | None:
    """Return the limits of the chart: the lowest loss, and somewhat above the highest before the minimum; None without one."""
    if "minimum" not in test.suggestions:
        return None
    before = test.curve[: test.suggestions["minimum"].place + 1]
    low = min(each.loss for each in test.curve if math.isfinite(each.loss))
    high = max(max(each.loss, each.smoothed) for each in before)
    return low, high + ABOVE * (high - low)


def _suggested(test: RangeTest) -> str:
    if not test.suggestions:
        return ""
    rows = [
        [
            _digits(each.learning_rate),
            f"{rule}{' (recommended)' if rule == test.recommended else ''}",
            each.reason,
        ]
        for rule, each in test.suggestions.items()
    ]
    return f"<section><h2>What the rules say</h2>{table(['rate', 'rule', 'why'], rows, numbers=1)}</section>"


def _parts(parts: Mapping[str, RangeTest]) -> str:
    if not parts:
        return ""
    rates = [test.learning_rate for test in parts.values() if test.learning_rate is not None]
    rows = [
        [
            _rate(test),
            "" if test.learning_rate is None else f"{test.learning_rate / max(rates):.2g}",
            name,
            test.verdict,
        ]
        for name, test in parts.items()
    ]
    drawn = "".join(_drawn(name, test, False) for name, test in parts.items())
    return (
        "<section><h2>Each part alone</h2><p class=note>The rate of one part is raised while all others stand still.</p>"
        f"{table(['rate', 'of the highest', 'part', 'why'], rows, numbers=2)}<div class=charts>{drawn}</div></section>"
    )


def check_picture(path: Path) -> str:
    """Return the format of a picture by the ending of its file.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: it draws none in that format.
    """
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    kind, kinds = path.suffix[1:].lower(), FigureCanvasBase.get_supported_filetypes()
    if kind not in kinds:
        raise RunFolderError(
            path,
            f"the picture cannot be written: got the ending '{path.suffix}', expected one of {', '.join(sorted(kinds))}",
            f"Name a file such as {path.with_suffix('.png')}",
        )
    return kind


def write_lr_picture(name: str, test: RangeTest, path: Path) -> Path:
    """Draw the curve into `path`, in the format of its ending, and return it.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: it cannot be written, or in that format.
    """
    kind = check_picture(path)
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawing.subplots()
    rates = [each.learning_rate for each in test.curve]
    axes.plot(rates, [each.loss for each in test.curve], color="0.7", linewidth=0.8, label="each update")
    axes.plot(rates, [each.smoothed for each in test.curve], linewidth=1.8, label="smoothed")
    for rule, each in test.suggestions.items():
        label = f"{rule} {_digits(each.learning_rate)}"
        axes.plot(each.learning_rate, _height(test.curve, each), "o", label=label)
    if (limits := _limits(test)) is not None:
        axes.set_ylim(*limits)
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title=f"{name}: learning-rate range test")
    axes.legend()
    try:
        with whole_file(path) as draft:
            drawing.savefig(draft, dpi=150, format=kind)
    except OSError as error:
        raise RunFolderError(
            path, f"the picture cannot be written: {error.strerror}", "Name a file that can be written."
        ) from error
    return path
