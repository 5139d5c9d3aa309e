"""Classes of labelled rows in detail: which are taken for which, how far probabilities can be believed, and the rows that a model is most wrong about."""

from __future__ import annotations

from collections import Counter
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
        confusion: rows by the numbers of their class and of the one that was predicted; pairs without rows are left out.
        bins: of the probabilities of predictions, from low to high; empty ones are left out, and predictions whose probability is no number.
        wrong: the rows whose own class was given the lowest probability, the worst first.
    """

    classes: tuple[str, ...]
    confusion: Mapping[tuple[int, int], int]
    bins: Sequence[ProbabilityBin]
    wrong: Sequence[WrongRow]

    @property
    def rows(self) -> int:
        """Rows of all classes."""
        return sum(self.confusion.values())

    @property
    def calibration_error(self) -> float:
        """The mean distance of a prediction's probability from the part of such predictions that is right.

        Source: Guo et al. 2017, arXiv:1706.04599, equation 3, in the bins that there are.
        """
        return sum(each.rows * abs(each.probability - each.right) for each in self.bins) / self.rows

    def by_class(self) -> dict[str, dict[str, float]]:
        """Return precision, recall and F1 of each class, 0 where it was never predicted or has no rows, and its rows.

        >>> ClassDetails(("a", "b"), {(0, 0): 3, (0, 1): 1}, (), ()).by_class()["a"]
        {'precision': 1.0, 'recall': 0.75, 'f1': 0.8571428571428571, 'rows': 4}
        """
        of_class, of_prediction = Counter[int](), Counter[int]()
        for (true, predicted), count in self.confusion.items():
            of_class[true] += count
            of_prediction[predicted] += count
        scores = {}
        for place, name in enumerate(self.classes):
            right, rows = self.confusion.get((place, place), 0), of_class[place]
            predicted = of_prediction[place]
            scores[name] = {
                "precision": right / predicted if predicted else 0.0,
                "recall": right / rows if rows else 0.0,
                "f1": 2 * right / (rows + predicted) if rows + predicted else 0.0,
                "rows": rows,
            }
        return scores
