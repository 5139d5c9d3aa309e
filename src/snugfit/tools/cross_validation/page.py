"""A cross-validation as one self-contained page: the scores of every fold, their mean and their spread."""

from __future__ import annotations

import math
from pathlib import Path

from snugfit.report.html import aligned, figures, table
from snugfit.report.series import format_number
from snugfit.report.svg import Chart, Dot, Frame, Series, escape, figure
from snugfit.tools.cross_validation.result import CrossValidation, Summary
from snugfit.tools.many_runs.outcome import render_page
from snugfit.units import format_seconds

LIMIT_DRAWN = 6
"""Metrics that get a chart; the table has all."""


def render_cv_page(result: CrossValidation) -> str:
    """Return the page as text."""
    return render_page(
        result,
        "Cross-validation",
        "cross-validation",
        [each.seconds for each in result.scores],
        [_means(result), _drawn(result), _folds(result), _notes(result)],
        "± is the standard deviation over folds (n − 1 below). Folds share training rows, which the corrected "
        "error of the mean counts in (Nadeau &amp; Bengio 2003).",
        noun="fold",
    )


def _means(result: CrossValidation) -> str:
    if not result.scores:
        return "<section><p>No fold is finished yet.</p></section>"
    shown = [
        (name, f"{format_number(mean)}", f" ± {format_number(result.summary.spread[name].deviation)}")
        for name, mean in result.summary.mean.items()
    ]
    return (
        f"<section><h2>Mean of the best weights of each fold</h2>{figures(shown)}"
        "<p class=note>Which weights are the best is decided on the rows that score them, so where a fold was evaluated often this is "
        f"somewhat too good; the last weights are not chosen.</p>{_summaries(result)}</section>"
    )


def _summaries(result: CrossValidation) -> str:
    rows = [
        [*_numbers(summary, name), name, weights]
        for name in result.summary.mean
        for weights, summary in (("best", result.summary), ("last", result.last))
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


def _drawn(result: CrossValidation) -> str:
    if len(result.scores) < 2:
        return ""
    count = len(result.scores)
    frame = Frame(end=count + 0.5, x_name="fold", noun="fold")
    charts = []
    for place, (name, mean) in enumerate([*result.summary.mean.items()][:LIMIT_DRAWN]):
        deviation = result.summary.spread[name].deviation
        if not math.isfinite(mean) or not math.isfinite(deviation):
            continue
        dots = [
            Dot(number, each.best[name], f"{each.fold}: {format_number(each.best[name])}")
            for number, each in enumerate(result.scores, 1)
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


def _folds(result: CrossValidation) -> str:
    if not result.scores:
        return ""
    names = list(result.summary.mean)
    columns = [aligned([each.best[name] for each in result.scores], 4) for name in names]
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
        for place, each in enumerate(result.scores)
    ]
    head = [*names, "at update", "of", "rows trained", "held out", "time", "fold", "run"]
    return f"<section><h2>The runs</h2>{table(head, rows, numbers=len(names) + 5)}</section>"


def _notes(result: CrossValidation) -> str:
    if not result.notes:
        return ""
    body = "".join(f"<p class=note>{escape(each[:1].upper() + each[1:])}</p>" for each in result.notes)
    return f"<section><h2>To know before it is believed</h2>{body}</section>"
