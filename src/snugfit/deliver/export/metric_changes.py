"""The metrics of a model before and after its weights were quantised, on labelled rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from snugfit.deliver.export.exported_model import ExportedModel
from snugfit.deliver.predict import scores_beside
from snugfit.errors import UserError
from snugfit.system.messages import loggers_above
from snugfit.units import counted

ROWS = 256
"""Rows that both models are scored on, at most: the quantised one is computed with on the processor."""


@dataclass(frozen=True)
class MetricChanges:
    """The metrics of both models.

    Args:
        source: the file of the rows.
        before, after: by the names of the metrics, the loss among them.
        bytes_before, bytes_after: of the weights.
    """

    source: str
    rows: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    bytes_before: int
    bytes_after: int

    def as_dict(self) -> dict[str, Any]:
        """Return it for programs."""
        metrics = {name: {"before": value, "after": self.after[name]} for name, value in self.before.items()}
        size = {"before": self.bytes_before, "after": self.bytes_after}
        return {"rows": self.rows, "source": self.source, "metrics": metrics, "weights_bytes": size}

    def in_words(self) -> str:
        """Return one sentence for people.

        >>> MetricChanges("validation.csv", 200, {"loss": 0.3, "accuracy": 0.9}, {"loss": 0.31, "accuracy": 0.895}, 90_000_000, 22_500_000).in_words()
        'on 200 rows of validation.csv, loss from 0.3 to 0.31, accuracy from 0.9 to 0.895; weights take 25% of their bytes'
        """
        changes = (
            f"{name} from {value:.4g} to {self.after[name]:.4g}" for name, value in self.before.items()
        )
        share = self.bytes_after / self.bytes_before
        return f"on {counted(self.rows, 'row')} of {self.source}, {', '.join(changes)}; weights take {share:.0%} of their bytes"


def metric_changes(
    subject: ExportedModel,
    quantised: nn.Module,
    folder: Path,
    rows: str | Path | Sequence[Mapping[str, Any]] | None,
) -> MetricChanges | str:
    """Return the metrics of a model beside those of its weights in fewer bits, or why there are none.

    Args:
        folder: of the quantised model's files.
        rows: a file of rows with labels, in place of the one that the run was validated on.
    """
    named = isinstance(rows, (str, Path))
    source = rows if named else (subject.recipe.get("data") or {}).get("validation")
    if subject.predictor.use is None or not isinstance(source, (str, Path)):
        return "no file of rows with labels is known here, which --rows would name"
    try:
        with _without_a_line_for_each_product():
            count, before, after = scores_beside(subject.predictor, quantised, str(source), most=ROWS)
    except UserError as error:  # rows without labels do to compare outputs on
        return str(error)
    return MetricChanges(
        Path(source).name,
        count,
        before,
        after,
        sum(each.numel() * each.element_size() for each in subject.model.parameters()),
        sum(path.stat().st_size for path in folder.glob("*.safetensors")),
    )


def _without_a_line_for_each_product() -> AbstractContextManager[None]:
    """Temporarily silence bitsandbytes, which says of each product that its inputs are cast."""
    return loggers_above(logging.ERROR, "bitsandbytes.autograd._functions")
