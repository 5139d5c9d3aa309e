"""An evaluation in detail as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from snugfit.report.detail_sections import DETAILS_STYLE, detail_sections
from snugfit.report.html import figures
from snugfit.report.page import document, replace_page
from snugfit.report.series import format_number
from snugfit.report.svg import escape
from snugfit.results.evaluation_details import EvaluationDetails
from snugfit.units import counted


def write_evaluation_page(
    source: str, data: str, metrics: Mapping[str, float], details: EvaluationDetails, path: Path
) -> Path:
    """Write the page to `path`, replacing an older one at once, and return it.

    Args:
        source: of the model; data: the file of the rows.
    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(path, render_evaluation(source, data, metrics, details))


def render_evaluation(
    source: str, data: str, metrics: Mapping[str, float], details: EvaluationDetails
) -> str:
    """Return the page as text."""
    numbers = [(name.replace("_", " "), format_number(value), "") for name, value in metrics.items()]
    if details.bins:
        numbers.append(("calibration error", format_number(details.calibration_error), ""))
    header = (
        f"<header><p class=about>{escape(source)}</p><h1>Evaluation</h1>"
        f"<p class=identity>{escape(counted(details.rows, 'row'))} of {escape(data)}</p>{figures(numbers)}</header>"
    )
    body = [header, *detail_sections(details)]
    return document(f"Evaluation · {source} · Snugfit", body, DETAILS_STYLE)
