"""An evaluation of classes as one self-contained page: each class, which is taken for which, calibration, and the worst rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from snugfit.report.html import aligned, figures, table
from snugfit.report.page import document, replace_page
from snugfit.report.series import format_number
from snugfit.report.svg import Chart, Dot, Frame, Series, escape, figure
from snugfit.results.class_details import ClassDetails, WrongRow
from snugfit.units import counted

_MOST_CLASSES = 30
_STYLE = """
section>.note{margin-bottom:12px}
.worst{display:grid;grid-template-columns:repeat(auto-fill,minmax(200px,1fr));gap:24px}
.worst img{display:block;max-width:160px;margin-bottom:8px}
.worst p{font-size:14px;line-height:1.4}
"""


def write_evaluation_page(
    source: str, data: str, metrics: Mapping[str, float], details: ClassDetails, path: Path
) -> Path:
    """Write the page to `path`, replacing an older one at once, and return it.

    Args:
        source: of the model; data: the file of the rows.
    Raises:
        RunFolderError: it cannot be written.
    """
    numbers = [(name, format_number(value), "") for name, value in metrics.items()]
    numbers.append(("calibration error", format_number(details.calibration_error), ""))
    header = (
        f"<header><p class=about>{escape(source)}</p><h1>Evaluation</h1>"
        f"<p class=identity>{escape(counted(details.rows, 'row'))} of {escape(data)}</p>{figures(numbers)}</header>"
    )
    sections = [header, _classes(details), _confusion(details), _calibration(details), _worst(details)]
    return replace_page(path, document(f"Evaluation · {source} · Snugfit", sections, _STYLE))


def _classes(details: ClassDetails) -> str:
    scores = details.by_class()
    names = ("precision", "recall", "f1")
    columns = [aligned([score[name] for score in scores.values()], decimals=3) for name in names]
    rows = [
        [*values, f"{scores[name]['rows']:,.0f}", name]
        for name, *values in zip(scores, *columns, strict=True)
    ]
    return f"<section><h2>Each class</h2>{table(['precision', 'recall', 'F1', 'rows', 'class'], rows, 4)}</section>"


def _confusion(details: ClassDetails) -> str:
    """Return which class is taken for which: as a matrix, or the most frequent confusions of many classes."""
    names, counts = details.classes, details.confusion
    if len(names) <= _MOST_CLASSES:
        rows = [
            [
                *(
                    f"{counts[true, predicted]:,}" if (true, predicted) in counts else "·"
                    for predicted in range(len(names))
                ),
                name,
            ]
            for true, name in enumerate(names)
        ]
        body = table([*names, "rows of"], rows, len(names))
        note = "A line has the rows of a class, a column those for which a class was predicted."
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
        body, note = table(["rows", "of", "taken for"], rows, 1), "The most frequent confusions."
    return f"<section><h2>Which is taken for which</h2><p class=note>{note}</p>{body}</section>"


def _calibration(details: ClassDetails) -> str:
    points = [(100 * each.probability, 100 * each.right) for each in details.bins]
    dots = [
        Dot(x, y, f"{counted(each.rows, 'row')}: {x:.0f}% given, {y:.0f}% right")
        for each, (x, y) in zip(details.bins, points, strict=True)
    ]
    drawn = Series("predictions", points, dots=dots, scattered=True)
    ideal = Series("as they say", [(0.0, 0.0), (100.0, 100.0)], tone=8, faint=True)
    chart = Chart("right", "% of the predictions", [drawn, ideal], limits=(0.0, 100.0), wide=True)
    frame = Frame(end=100.0, x_name="probability of the prediction, %", noun="probability")
    return (
        "<section><h2>Probabilities</h2><p class=note>Where predictions of 90% are right nine times in ten, probabilities can be believed: below the "
        f"line the model is surer than it is right.</p><div class=charts>{figure(chart, frame)}</div></section>"
    )


def _worst(details: ClassDetails) -> str:
    body = "".join(map(_row, details.wrong))
    return (
        "<section><h2>The worst rows</h2><p class=note>Those whose own class was given the lowest probability: a mistake of the model, or of "
        f"the label.</p><div class=worst>{body}</div></section>"
    )


def _row(row: WrongRow) -> str:
    picture = f"<img src='{row.picture}' alt=''>" if row.picture else ""
    cells = "".join(
        f"<p><small>{escape(name)}</small> {escape(value)}</p>" for name, value in row.cells.items()
    )
    return (
        f"<div>{picture}<p><strong>{escape(row.label)}</strong>, given {row.given:.1%}; predicted {escape(row.prediction)} with "
        f"{row.probability:.1%}; line {row.line:,}</p>{cells}</div>"
    )
