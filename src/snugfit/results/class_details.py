"""Classes of labelled rows in detail: which are taken for which, how far probabilities can be believed, and the rows that a model is most wrong about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProbabilityBin:
    """Rows whose prediction has about one probability: how many, their mean probability, and the part of them that is right."""

    rows: int
    probability: float
    right: float


@dataclass(frozen=True)
class WrongRow:
    """A row, with the class that it has and the one that was predicted, and the probability that each was given.

    Args:
        line: of the file, as predictions name it.
        cells: of the row, by column.
        picture: a `data:` address of what it shows; empty where it shows nothing.
    """

    line: int
    label: str
    given: float
    prediction: str
    probability: float
    cells: Mapping[str, str]
    picture: str = ""


@dataclass(frozen=True)
class ClassDetails:
    """An evaluation of classes in detail.

    Args:
        confusion: rows by their class and by the one that was predicted.
        bins: of the probabilities of predictions, from low to high; empty ones are left out.
        wrong: the rows whose own class was given the lowest probability, the worst first.
    """

    classes: tuple[str, ...]
    confusion: Sequence[Sequence[int]]
    bins: Sequence[ProbabilityBin]
    wrong: Sequence[WrongRow]

    @property
    def rows(self) -> int:
        """Rows of all classes."""
        return sum(map(sum, self.confusion))

    @property
    def calibration_error(self) -> float:
        """The mean distance of a prediction's probability from the part of such predictions that is right.

        Source: Guo et al. 2017, arXiv:1706.04599, equation 3, in the bins that there are.
        """
        return sum(each.rows * abs(each.probability - each.right) for each in self.bins) / self.rows

    def by_class(self) -> dict[str, dict[str, float]]:
        """Return precision, recall and F1 of each class, 0 where it was never predicted or has no rows, and its rows.

        >>> ClassDetails(("a", "b"), ((3, 1), (0, 0)), (), ()).by_class()["a"]
        {'precision': 1.0, 'recall': 0.75, 'f1': 0.8571428571428571, 'rows': 4}
        """
        scores = {}
        for place, name in enumerate(self.classes):
            right, rows = self.confusion[place][place], sum(self.confusion[place])
            predicted = sum(row[place] for row in self.confusion)
            scores[name] = {
                "precision": right / predicted if predicted else 0.0,
                "recall": right / rows if rows else 0.0,
                "f1": 2 * right / (rows + predicted) if rows + predicted else 0.0,
                "rows": rows,
            }
        return scores
