"""The charts of a report as pictures, for those who look at runs elsewhere. Matplotlib draws them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.errors import MissingExtra
from snugfit.report.charts import charts
from snugfit.report.series import Point, decimate, is_plottable, padded, robust_range, smooth
from snugfit.report.story import read_story
from snugfit.report.svg import Chart, is_smoothed, smoothing_reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = 7.5, 4.0
_DOTS_AN_INCH = 110
_COLUMNS = 800


def require_matplotlib() -> None:
    """Refuse pictures before the work that they would be of.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "plot")


@contextmanager
def plain_texts() -> Iterator[None]:
    """Temporarily draw texts as they are: names of classes and metrics may have what begins a formula."""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False, "text.usetex": False}):
        yield


def write_charts(run_dir: Path, folder: Path) -> dict[str, Path]:
    """Draw the charts of a run's report into a folder, and return the file of each by its name, such as `loss`.

    Raises:
        MissingExtra: matplotlib is not installed.
        RunFolderError: the run has no events.
        OSError: a file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    files = {}
    folder.mkdir(exist_ok=True)
    with plain_texts():
        for chart in charts(read_story(run_dir)):
            drawing = Figure(figsize=_INCHES, layout="constrained")
            _draw(chart, drawing.subplots())
            name = re.sub(r"[^\w-]+", "-", chart.title.casefold())
            files[name] = folder / f"{name}.png"
            drawing.savefig(files[name], dpi=_DOTS_AN_INCH)
    return files


def _draw(chart: Chart, axes: Axes) -> None:
    values: list[float] = []
    for series in chart.series:
        x, y = _columns(series.points)
        values += y
        color = f"C{series.tone - 1}"
        faint = is_smoothed(series)
        label = None if faint else series.name
        axes.plot(
            x,
            y,
            color=color,
            alpha=0.3 if faint else 1.0,
            linewidth=0.8 if faint else 1.6,
            label=label,
            marker="o" if len(x) == 1 else "",
        )
        if faint:
            axes.plot(
                *_columns(smooth(series.points, smoothing_reach(len(series.points)))),
                color=color,
                linewidth=1.6,
                label=series.name,
            )
        for dot in series.dots:
            if dot.best:
                axes.plot(dot.x, dot.y, "o", color=color, markersize=7)
    limits = chart.limits or robust_range(values)
    if limits is not None:
        axes.set_ylim(*padded(*limits, from_zero=chart.from_zero))
    axes.set(title=chart.title, xlabel="update", ylabel=chart.unit)
    axes.grid(visible=True, alpha=0.3)
    if len(chart.series) > 1:
        axes.legend()


def _columns(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    drawn = decimate(points, _COLUMNS)
    return [x for x, _ in drawn], [y if is_plottable(y) else math.nan for _, y in drawn]
