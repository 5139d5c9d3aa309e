"""The scores of a trained model on labelled rows, as Python and a notebook show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from snugfit.report.evaluation_page import render_evaluation
from snugfit.results.evaluation_details import EvaluationDetails
from snugfit.results.shown import Shown
from snugfit.units import counted


@dataclass(frozen=True, repr=False)
class Evaluation(Shown):
    """The scores of a model on labelled rows.

    Args:
        source: of the model.
        data: file of the rows, or what they are.
        metrics: the loss and the metrics by name.
        rows: number that was scored; `skipped` those that were left out, by reason.
        details: each class, which is taken for which, calibration, and the worst rows.
        baseline: scores of who learns nothing, where the task has such.
    """

    source: str
    data: str
    metrics: Mapping[str, float]
    rows: int
    details: EvaluationDetails
    skipped: Mapping[str, int] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def summary_lines(self) -> list[str]:
        """Return the scores, a line each, and what else it can be asked."""
        lines = [f"Evaluation: {counted(self.rows, 'row')} of {self.data}, by {self.source}"]
        width = max(map(len, self.metrics))
        for name, value in self.metrics.items():
            baseline = f"  ({self.baseline[name]:.4g} without learning)" if name in self.baseline else ""
            lines.append(f"  {name:<{width}}  {value:.4g}{baseline}")
        if left_out := sum(self.skipped.values()):
            lines.append(f"  {counted(left_out, 'row')} left out")
        return [*lines, *(f"  {warning}" for warning in self.warnings), "  then  .metrics, .details"]

    def page(self) -> str:
        """Return the page that `snugfit evaluate --page` writes."""
        return render_evaluation(self.source, self.data, self.metrics, self.details)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "details": self.details.as_dict()}
