"""A cross-validation as one self-contained page: the scores of every fold, their mean and their spread."""

from __future__ import annotations

import math
from pathlib import Path

from snugfit.report.page import document, replace_page
from snugfit.report.parts import aligned, counted, figures, table
from snugfit.report.series import format_number
from snugfit.report.svg import Chart, Dot, Frame, Series, escape, figure
from snugfit.tools.cross_validation.result import CrossValidation, Summary
from snugfit.units import format_seconds

PAGE = "cv.html"
LIMIT_DRAWN = 6
"""Metrics that get a chart; the table has all."""


def write_cv_page(found: CrossValidation, folder: Path) -> Path:
    """Write the page into `folder`, replacing an older one at once, and return its path.

    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(folder / PAGE, render_cv_page(found))


def render_cv_page(found: CrossValidation) -> str:
    """Return the page as text."""
    done = f"{len(found.scores)} of {counted(found.planned, 'fold')}"
    status = "finished" if found.finished else "stopped"
    seconds = sum(each.seconds for each in found.scores)
    stopped = f"<p>Not finished: {escape(found.stop_reason)}.</p>" if found.stop_reason else ""
    body = (
        f"<header><p class=about>Cross-validation</p><h1>{escape(found.name)}</h1>"
        f'<p class=identity><span class="status {status}">{done}</span><span>{format_seconds(seconds)}</span></p>{stopped}</header>',
        _means(found),
        _drawn(found),
        _folds(found),
        _notes(found),
        "<footer>Made by Snugfit. ± is the standard deviation over folds (n − 1 below). Folds share training rows, which the corrected "
        "error of the mean counts in (Nadeau &amp; Bengio 2003).</footer>",
    )
    return document(f"{found.name} · cross-validation · Snugfit", body, ".note{margin:12px 0}")


def _means(found: CrossValidation) -> str:
    if not found.scores:
        return "<section><p>No fold is finished yet.</p></section>"
    shown = [
        (name, f"{format_number(mean)}", f" ± {format_number(found.summary.spread[name].deviation)}")
        for name, mean in found.summary.mean.items()
    ]
    return (
        f"<section><h2>Mean of the best weights of each fold</h2>{figures(shown)}"
        "<p class=note>Which weights are the best is decided on the rows that score them, so where a fold was evaluated often this is "
        f"somewhat too good; the last weights are not chosen.</p>{_summaries(found)}</section>"
    )


def _summaries(found: CrossValidation) -> str:
    rows = [
        [*_numbers(summary, name), name, weights]
        for name in found.summary.mean
        for weights, summary in (("best", found.summary), ("last", found.last))
        if name in summary.mean
    ]
    head = ["mean", "deviation", "error of the mean", "corrected", "metric", "weights"]
    return table(head, rows, numbers=4)


def _numbers(summary: Summary, name: str) -> list[str]:
    spread = summary.spread[name]
    return [
        format_number(each)
        for each in (summary.mean[name], spread.deviation, spread.error, spread.corrected_error)
    ]


def _drawn(found: CrossValidation) -> str:
    if len(found.scores) < 2:
        return ""
    count = len(found.scores)
    frame = Frame(end=count + 0.5, x_name="fold", noun="fold")
    charts = []
    for place, (name, mean) in enumerate([*found.summary.mean.items()][:LIMIT_DRAWN]):
        deviation = found.summary.spread[name].deviation
        if not math.isfinite(mean) or not math.isfinite(deviation):
            continue
        dots = [
            Dot(number, each.best[name], f"{each.fold}: {format_number(each.best[name])}")
            for number, each in enumerate(found.scores, 1)
        ]
        series = [
            Series("each fold", [], dots=dots),
            Series("mean", [(0.0, mean), (count + 0.5, mean)], tone=2),
            Series(
                "mean + deviation",
                [(0.0, mean + deviation), (count + 0.5, mean + deviation)],
                tone=2,
                faint=True,
            ),
            Series(
                "mean − deviation",
                [(0.0, mean - deviation), (count + 0.5, mean - deviation)],
                tone=2,
                faint=True,
            ),
        ]
        values = [dot.y for dot in dots] + [mean - deviation, mean + deviation]
        limits = (min(values), max(values)) if max(values) > min(values) else None
        charts.append(figure(Chart(name, "", series, limits=limits), frame, first=place == 0))
    return f"<section><h2>Each fold</h2><div class=charts>{''.join(charts)}</div></section>"


def _folds(found: CrossValidation) -> str:
    if not found.scores:
        return ""
    names = list(found.summary.mean)
    columns = [aligned([each.best[name] for each in found.scores], 4) for name in names]
    rows = [
        [
            *(column[place] for column in columns),
            f"{each.best_update:,}",
            f"{each.updates:,}",
            f"{each.training_rows:,}",
            f"{each.validation_rows:,}",
            format_seconds(each.seconds),
            each.fold,
            Path(each.run_dir).name,
        ]
        for place, each in enumerate(found.scores)
    ]
    head = [*names, "at update", "of", "rows trained", "held out", "time", "fold", "run"]
    return f"<section><h2>The runs</h2>{table(head, rows, numbers=len(names) + 5)}</section>"


def _notes(found: CrossValidation) -> str:
    if not found.notes:
        return ""
    body = "".join(f"<p class=note>{escape(each[:1].upper() + each[1:])}</p>" for each in found.notes)
    return f"<section><h2>To know before it is believed</h2>{body}</section>"
