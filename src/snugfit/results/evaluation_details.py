"""An evaluation in detail: each class, which is taken for which, how far probabilities can be believed, and the rows that a model is most wrong about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class ProbabilityBin:
    """Predictions of about one probability: how many, their mean probability, and the part of them that is right."""

    rows: int
    probability: float
    right: float


@dataclass(frozen=True)
class ClassCounts:
    """Counts of a class: predicted and right, predicted, and true."""

    right: int
    predicted: int
    true: int


@dataclass(frozen=True)
class WorstRow:
    """A row that a model is most wrong about.

    Args:
        row: its number among those that were scored, from 0.
        place: where it stands, such as "line 12".
        loss: of the row.
        label, prediction: in words; empty where a row has none.
        given, probability: what the label and the prediction were given, where rows have one class each.
        cells: of the row, by column.
        pictures: `data:` addresses of what it shows.
    """

    row: int
    place: str
    loss: float
    label: str = ""
    prediction: str = ""
    given: float | None = None
    probability: float | None = None
    cells: Mapping[str, str] = field(default_factory=dict)
    pictures: Sequence[str] = ()


@dataclass(frozen=True)
class EvaluationDetails:
    """An evaluation in detail. What a task has nothing of is empty.

    Args:
        rows: that were scored.
        counted: what the counts of classes are of: row, label, span or pixel.
        classes: names; `counts` are of each, in their order.
        confusion: counts by the numbers of the true class and of the predicted one; pairs without any are left out, the rarest of many
            thousands, and all where classes are not one against the other.
        bins: of the probabilities of predictions, from low to high; empty ones are left out, and predictions whose probability is no number.
        numbers: pairs of a label and its prediction, of some rows.
        worst: the rows of the highest loss, the worst first.
    """

    rows: int
    counted: str = "row"
    classes: tuple[str, ...] = ()
    counts: Sequence[ClassCounts] = ()
    confusion: Mapping[tuple[int, int], int] = field(default_factory=dict)
    bins: Sequence[ProbabilityBin] = ()
    numbers: Sequence[tuple[float, float]] = ()
    worst: Sequence[WorstRow] = ()

    @property
    def calibration_error(self) -> float:
        """The mean distance of a prediction's probability from the part of such predictions that is right; NaN without any.

        Source: Guo et al. 2017, arXiv:1706.04599, equation 3, in the bins that there are.
        """
        total = sum(each.rows for each in self.bins)
        distances = sum(each.rows * abs(each.probability - each.right) for each in self.bins)
        return distances / total if total else math.nan

    def by_class(self) -> dict[str, dict[str, float]]:
        """Return precision, recall and F1 of each class, 0 where it was never predicted or is never true, and how often it is true.

        Pixels have their intersection over union too.

        >>> EvaluationDetails(4, classes=("a",), counts=[ClassCounts(3, 3, 4)]).by_class()["a"]
        {'precision': 1.0, 'recall': 0.75, 'f1': 0.8571428571428571, 'rows': 4}
        """
        scores = {}
        for name, (right, predicted, true) in zip(
            self.classes, ((each.right, each.predicted, each.true) for each in self.counts), strict=True
        ):
            either = true + predicted - right
            scores[name] = {
                "precision": right / predicted if predicted else 0.0,
                "recall": right / true if true else 0.0,
                "f1": 2 * right / (true + predicted) if true + predicted else 0.0,
                **({"iou": right / either if either else 0.0} if self.counted == "pixel" else {}),
                f"{self.counted}s": true,
            }
        return scores

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        plain = asdict(self)
        plain["confusion"] = [[*pair, count] for pair, count in self.confusion.items()]
        return plain

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> EvaluationDetails:
        """Return the details of plain values.

        Raises:
            KeyError, TypeError, ValueError: they are of something else.
        """
        return cls(
            rows=int(plain["rows"]),
            counted=str(plain["counted"]),
            classes=tuple(map(str, plain["classes"])),
            counts=[ClassCounts(**each) for each in plain["counts"]],
            confusion={(true, predicted): count for true, predicted, count in plain["confusion"]},
            bins=[ProbabilityBin(**each) for each in plain["bins"]],
            numbers=[(float(label), float(predicted)) for label, predicted in plain["numbers"]],
            worst=[WorstRow(**each) for each in plain["worst"]],
        )
