"""Sections of a page about an evaluation in detail: each class, which is taken for which, calibration, numbers, and the worst rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snugfit.report.html import aligned, details, table
from snugfit.report.series import is_plottable
from snugfit.report.svg import Chart, Dot, Frame, RangeFrame, Series, escape, figure
from snugfit.results.evaluation_details import EvaluationDetails, WorstRow
from snugfit.results.run_folder import DETAILS
from snugfit.system.json_text import parse_json
from snugfit.units import counted

DETAILS_STYLE = """
section>.note{margin-bottom:12px}
.worst{display:grid;grid-template-columns:repeat(auto-fill,minmax(200px,1fr));gap:24px}
.worst img{display:inline-block;max-width:160px;margin:0 8px 8px 0}
.worst p{font-size:14px;line-height:1.4;overflow-wrap:anywhere}
"""
_MOST_CLASSES = 30
_LONG = 60
"""Classes from which a table starts folded."""


def read_details(run_dir: Path) -> EvaluationDetails | None:
    """Return what a run has kept of its best evaluation in detail; None without any that can be read."""
    try:
        return EvaluationDetails.of(parse_json((run_dir / DETAILS).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def detail_sections(seen: EvaluationDetails) -> list[str]:
    """Return the sections of what there is."""
    return [_classes(seen), _confusion(seen), _calibration(seen), _numbers(seen), _worst(seen)]


def _classes(seen: EvaluationDetails) -> str:
    scores = seen.by_class()
    if not scores:
        return ""
    names = [name for name in ("precision", "recall", "f1", "iou") if name in next(iter(scores.values()))]
    heads = {"f1": "F1", "iou": "IoU"}
    columns = [aligned([score[name] for score in scores.values()], decimals=3) for name in names]
    counts = [f"{score[f'{seen.counted}s']:,.0f}" for score in scores.values()]
    rows = list(zip(scores, *columns, counts, strict=True))
    head = ["class", *(heads.get(name, name) for name in names), f"{seen.counted}s"]
    body = table(head, rows, numbers=len(names) + 1, named=True)
    return f"<section><h2>Each class</h2>{details(counted(len(rows), 'class'), body) if len(rows) > _LONG else body}</section>"


def _confusion(seen: EvaluationDetails) -> str:
    """Return which class is taken for which: as a matrix, or the most frequent confusions of many classes."""
    names, counts = seen.classes, seen.confusion
    if not counts:
        return ""
    if len(names) <= _MOST_CLASSES:
        rows = [
            [
                name,
                *(
                    f"{counts[true, predicted]:,}" if (true, predicted) in counts else "·"
                    for predicted in range(len(names))
                ),
            ]
            for true, name in enumerate(names)
        ]
        body = table([f"{seen.counted}s of", *names], rows, len(names), named=True)
        note = f"A line has the {seen.counted}s of a class, a column those for which a class was predicted."
    else:
        pairs = [
            (count, true, predicted)
            for (true, predicted), count in sorted(counts.items())
            if true != predicted
        ]
        pairs.sort(key=lambda pair: -pair[0])
        rows = [
            [f"{count:,}", names[true], names[predicted]] for count, true, predicted in pairs[:_MOST_CLASSES]
        ]
        body, note = table([f"{seen.counted}s", "of", "taken for"], rows, 1), "The most frequent confusions."
    return f"<section><h2>Which is taken for which</h2><p class=note>{note}</p>{body}</section>"


def _calibration(seen: EvaluationDetails) -> str:
    if not seen.bins:
        return ""
    points = [(100 * each.probability, 100 * each.right) for each in seen.bins]
    dots = [
        Dot(x, y, f"{counted(each.rows, 'prediction')}: {x:.0f}% given, {y:.0f}% right")
        for each, (x, y) in zip(seen.bins, points, strict=True)
    ]
    drawn = Series("predictions", points, dots=dots, scattered=True)
    ideal = Series("as they say", [(0.0, 0.0), (100.0, 100.0)], tone=8, faint=True)
    chart = Chart("Right", "% of the predictions", [drawn, ideal], limits=(0.0, 100.0), wide=True)
    frame = Frame(end=100.0, x_name="probability of the prediction, %", noun="probability")
    return (
        "<section><h2>Probabilities</h2><p class=note>Where predictions of 90% are right nine times in ten, probabilities can be believed: below the "
        f"line the model is surer than it is right.</p><div class=charts>{figure(chart, frame)}</div></section>"
    )


def _numbers(seen: EvaluationDetails) -> str:
    pairs = [pair for pair in seen.numbers if all(map(is_plottable, pair))]
    if not pairs:
        return ""
    low, high = min(map(min, pairs)), max(map(max, pairs))
    if low == high:
        low, high = low - 1, high + 1
    dots = [Dot(label, prediction, f"{prediction:.6g} for {label:.6g}") for label, prediction in pairs]
    drawn = Series("rows", [], dots=dots, scattered=True)  # in the order of the rows, which no line joins
    ideal = Series("as they are", [(low, low), (high, high)], tone=8, faint=True)
    chart = Chart("Prediction", "", [drawn, ideal], limits=(low, high), wide=True)
    frame = RangeFrame(end=high, start=low, x_name="label", noun="label")
    return (
        "<section><h2>Predictions beside labels</h2><p class=note>On the line a prediction is the label.</p>"
        f"<div class=charts>{figure(chart, frame)}</div></section>"
    )


def _worst(seen: EvaluationDetails) -> str:
    if not seen.worst:
        return ""
    body = "".join(map(_row, seen.worst))
    return (
        "<section><h2>The worst rows</h2><p class=note>Those of the highest loss: a mistake of the model, or of the label.</p>"
        f"<div class=worst>{body}</div></section>"
    )


def _row(row: WorstRow) -> str:
    pictures = "".join(
        f"<img src='{escape(each)}' alt='{_alt(row, number)}'>" for number, each in enumerate(row.pictures)
    )
    cells = "".join(
        f"<p><small>{escape(name)}</small> {escape(value)}</p>" for name, value in row.cells.items()
    )
    return f"<div>{pictures}<p>{'; '.join(filter(None, _words(row)))}</p>{cells}</div>"


def _alt(row: WorstRow, number: int) -> str:
    return escape(f"{row.place}{('', ', as labelled', ', as predicted')[min(number, 2)]}")


def _words(row: WorstRow) -> Sequence[str]:
    label, prediction = f"<strong>{escape(row.label)}</strong>", escape(row.prediction)
    if row.given is not None and row.probability is not None:
        words = f"{label}, given {row.given:.1%}", f"predicted {prediction} with {row.probability:.1%}"
    elif row.label:
        words = label, f"predicted {prediction}, loss {row.loss:.4g}"
    else:
        words = prediction, f"loss {row.loss:.4g}"
    return (*words, escape(row.place))
