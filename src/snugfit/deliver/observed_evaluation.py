"""An evaluation in detail, of any task: what a model tells of labelled rows, class by class, and the rows that it is most wrong about."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from snugfit.core.batch import labels_of
from snugfit.core.losses import IGNORE_INDEX, logits_of
from snugfit.data.texts.tags import OUTSIDE, Span, spans_of
from snugfit.deliver.shown_rows import SIDE
from snugfit.kit.language_models.token_scores import Seen
from snugfit.results.evaluation_details import ClassCounts, EvaluationDetails, ProbabilityBin, WorstRow
from snugfit.step.metrics.label_metrics import are_predicted
from snugfit.system.rounding import in_float64

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.core.batch import Batch
    from snugfit.core.loss_terms import LossTerms
    from snugfit.deliver.shown_rows import ShownRows
    from snugfit.strategies.base import Strategy
    from snugfit.tasks.inference import Inference

_BINS = 15
MOST_WORST = 48
"""Rows that are shown."""
_MOST_NUMBERS = 1000
"""Pairs of a label and its prediction that are drawn."""
_MOST_PAIRS = 10_000
"""Pairs of a true and a predicted class whose counts are kept, the most frequent ones: all of up to 100 classes."""
_MOST_NAMES = 12
"""Labels or spans of a row that are predicted."""


class Observed:
    """An evaluation that is looked at in detail while it goes on: give it to `evaluate` as its observer.

    Args:
        use: says what the task tells: classes, labels, spans, pixels, numbers, or something else, of which rows alone are kept.
        meta: what the model is saved with.
        most: of the worst rows are kept.
    """

    def __init__(self, use: Inference, meta: Mapping[str, Any], *, most: int = MOST_WORST) -> None:
        self._tally, self._most = _tally_of(use, meta), most
        self.seen = Seen.NOTHING if self._tally is None else Seen.OUTPUTS
        self._rows = 0
        self._worst: list[_Worst] = []

    def add(self, outputs: Any, part: Batch, terms: LossTerms, first: int) -> None:
        """Count the rows of a micro-batch.

        Args:
            first: the place of its first row among those of all ranks.
        """
        losses = [math.inf if math.isnan(each) else each for each in terms.by_row().values.tolist()]
        order = heapq.nlargest(self._most, range(len(losses)), key=lambda row: (losses[row], -row))
        judge: Judge = _unjudged
        counts = None
        if self._tally is not None:
            judge, counts = self._tally.judged(outputs, labels_of(part.data), first)
        full = len(self._worst) == self._most
        order = [row for row in order if not (full and losses[row] <= self._worst[-1][0])]
        worst = [(losses[row], -(first + row), judge(row)) for row in order]
        self._take_in(len(losses), worst, counts)  # once nothing more can fail

    def join_ranks(self, strategy: Strategy) -> None:
        """Take in what the other ranks have seen; all of them call this, once no row is left."""
        own = self._rows, self._worst, None if self._tally is None else self._tally.counts()
        for rank, seen in enumerate(strategy.tell(own)):
            if rank != strategy.rank:
                self._take_in(*seen)

    def _take_in(self, rows: int, worst: Sequence[_Worst], counts: Any) -> None:
        self._rows += rows
        both = sorted([*self._worst, *worst], key=lambda each: each[:2], reverse=True)
        self._worst = both[: self._most]
        if self._tally is not None:
            self._tally.take_in(counts)

    def details(self, shown: ShownRows) -> EvaluationDetails:
        """Return what was seen.

        Args:
            shown: the rows as people read them.
        """
        counted = EvaluationDetails(0) if self._tally is None else self._tally.details()
        worst = [
            WorstRow(
                -place,
                shown.place(-place),
                loss,
                judged.label,
                judged.prediction,
                judged.given,
                judged.probability,
                shown.cells(-place),
                shown.pictures(-place, judged.masks),
            )
            for loss, place, judged in self._worst
        ]
        return replace(counted, rows=self._rows, worst=worst)


@dataclass(frozen=True)
class _Judged:
    """The verdict on one row: its label and its prediction, in words, and its masks where it has some."""

    label: str = ""
    prediction: str = ""
    given: float | None = None
    probability: float | None = None
    masks: tuple[Any, ...] = ()


_Worst = tuple[float, int, _Judged]
"""The loss of a row, its place less than zero, and the verdict on it."""

Judge = Callable[[int], _Judged]
"""From a row of a micro-batch to what is said of it."""


def _unjudged(_row: int) -> _Judged:
    return _Judged()


class _Tally(Protocol):
    """Counts of what a task tells."""

    def judged(self, outputs: Any, labels: Tensor, first: int) -> tuple[Judge, Any]:
        """Return what says of each row of a micro-batch whether it is right, and the counts of its rows.

        Args:
            first: the place of its first row among those of all ranks.
        """
        ...

    def take_in(self, counts: Any) -> None:
        """Add the counts of a micro-batch, or of another rank."""
        ...

    def counts(self) -> Any:
        """Return what was counted, as another rank takes it in."""
        ...

    def details(self) -> EvaluationDetails:
        """Return what was counted."""
        ...


def _tally_of(use: Inference, meta: Mapping[str, Any]) -> _Tally | None:
    if use.any_number:
        return _Labels(use.classes, meta["threshold"])
    if use.classes:
        return _Classes(use.classes)
    if use.counted == "spans":
        return _Spans(tuple(meta["labels"]), meta["scheme"])
    if use.counted == "pixels":
        return _Pixels(tuple(meta["labels"]))
    return _Numbers() if use.counted == "numbers" else None


def _bin_sums(probabilities: Tensor, right: Tensor) -> Tensor:
    """Return for each bin the number of probabilities, their sum, and how many are right, shape (3, bins).

    Args:
        probabilities: in float64 on the host; what is no number is left out.
    """
    known = ~probabilities.isnan()
    given, right = probabilities[known], in_float64(right[known])
    numbers = (given * _BINS).long().clamp(max=_BINS - 1)
    values = torch.ones_like(given), given, right
    return torch.stack([torch.bincount(numbers, each, minlength=_BINS) for each in values])


def _bins(sums: Tensor) -> list[ProbabilityBin]:
    return [
        ProbabilityBin(int(count), total / count, right / count)
        for count, total, right in sums.T.tolist()
        if count
    ]


class _Classes:
    """Counts of rows with one class each."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names, self._bins = names, in_float64(torch.zeros(3, _BINS))
        self._confusion: Counter[tuple[int, int]] = Counter()

    def judged(self, outputs: Any, labels: Tensor, _first: int) -> tuple[Judge, Any]:
        probabilities = self._probabilities(logits_of(outputs))
        labels = labels.cpu().long()
        highest, predicted = probabilities.max(dim=1)
        given = probabilities.gather(1, labels[:, None])[:, 0]
        pairs = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))

        def judge(row: int) -> _Judged:
            label, likeliest = self._names[int(labels[row])], self._names[int(predicted[row])]
            return _Judged(label, likeliest, float(given[row]), float(highest[row]))

        return judge, (pairs, _bin_sums(highest, predicted == labels))

    def _probabilities(self, logits: Tensor) -> Tensor:
        """Return the probability of each class, in float64 on the host.

        A single logit is that of the second of two classes; a class that the model has no logit for has no probability.
        """
        logits = in_float64(logits.cpu())
        if logits.ndim == 1 or logits.shape[1] == 1 < len(self._names):
            logits = torch.nn.functional.pad(logits.reshape(-1, 1), (1, 0))
        missing = len(self._names) - logits.shape[1]
        return torch.nn.functional.pad(logits.softmax(dim=1), (0, max(0, missing)))

    def take_in(self, counts: Any) -> None:
        pairs, bins = counts
        self._confusion.update(pairs)
        self._bins += bins

    def counts(self) -> Any:
        return self._confusion, self._bins

    def details(self) -> EvaluationDetails:
        counts = _counts(self._confusion, len(self._names))
        return EvaluationDetails(
            0, "row", self._names, counts, _most_frequent(self._confusion), _bins(self._bins)
        )


class _Labels:
    """Counts of rows with any number of labels: each label of each row counts by itself."""

    def __init__(self, names: tuple[str, ...], threshold: float) -> None:
        self._names, self._threshold = names, threshold
        self._bins = in_float64(torch.zeros(3, _BINS))
        self._counts = torch.zeros(3, len(names), dtype=torch.long)

    def judged(self, outputs: Any, labels: Tensor, _first: int) -> tuple[Judge, Any]:
        logits = logits_of(outputs).cpu()
        probabilities = in_float64(logits).sigmoid()
        true, predicted = labels.cpu() > 0, are_predicted(logits, self._threshold)
        bins = _bin_sums(torch.maximum(probabilities, 1 - probabilities), predicted == true)
        counts = torch.stack([(true & predicted).sum(0), predicted.sum(0), true.sum(0)])
        return lambda row: _Judged(self._named(true[row]), self._named(predicted[row])), (counts, bins)

    def _named(self, row: Tensor) -> str:
        return _listed([self._names[place] for place in row.nonzero().flatten().tolist()]) or "no label"

    def take_in(self, counts: Any) -> None:
        of_labels, bins = counts
        self._counts += of_labels
        self._bins += bins

    def counts(self) -> Any:
        return self._counts, self._bins

    def details(self) -> EvaluationDetails:
        counts = [ClassCounts(*column) for column in self._counts.T.tolist()]
        return EvaluationDetails(0, "label", self._names, counts, bins=_bins(self._bins))


class _Spans:
    """Counts of tagged words: a span is right that has the same words and the same label."""

    def __init__(self, tags: tuple[str, ...], scheme: Any) -> None:
        self._tags, self._scheme = tags, scheme
        self._counts: Counter[tuple[str, int]] = Counter()  # by label: right, predicted, true

    def _labels(self) -> list[str]:
        named = (tag if self._scheme == "plain" else tag[2:] for tag in self._tags if tag != OUTSIDE)
        return list(dict.fromkeys(named))

    def judged(self, outputs: Any, labels: Tensor, _first: int) -> tuple[Judge, Any]:
        likeliest, rows = logits_of(outputs).argmax(dim=-1).tolist(), []
        counts: Counter[tuple[str, int]] = Counter()
        for own_classes, true in zip(likeliest, labels.tolist(), strict=True):
            places = [place for place, label in enumerate(true) if label != IGNORE_INDEX]
            predicted, wanted = (
                spans_of([self._tags[row[place]] for place in places], self._scheme)
                for row in (own_classes, true)
            )
            for number, own in enumerate(({*predicted} & {*wanted}, {*predicted}, {*wanted})):
                counts.update((span.label, number) for span in own)
            rows.append((wanted, predicted))
        return lambda row: _Judged(_words(rows[row][0]), _words(rows[row][1])), counts

    def take_in(self, counts: Any) -> None:
        self._counts.update(counts)

    def counts(self) -> Any:
        return self._counts

    def details(self) -> EvaluationDetails:
        labels = self._labels()
        counts = [ClassCounts(*(self._counts[label, number] for number in range(3))) for label in labels]
        return EvaluationDetails(0, "span", tuple(labels), counts)


def _words(spans: Sequence[Span]) -> str:
    """Return spans by their words, counted from 1.

    >>> _words([Span(0, 2, "person"), Span(4, 5, "place")])
    'person in words 1-2, place in word 5'
    """
    named = [
        f"{label} in word{'' if end == start + 1 else 's'} {start + 1}{'' if end == start + 1 else f'-{end}'}"
        for start, end, label in spans
    ]
    return _listed(named) or "no span"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


class _Pixels:
    """Counts of masks: each pixel whose class is known counts."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._counts = torch.zeros(len(names) ** 2, dtype=torch.long)

    def judged(self, outputs: Any, labels: Tensor, _first: int) -> tuple[Judge, Any]:
        predicted, true = logits_of(outputs).argmax(dim=-1), labels.long()
        known = true != IGNORE_INDEX
        pairs = true[known] * len(self._names) + predicted[known]
        counts = torch.bincount(pairs, minlength=len(self._counts)).to("cpu")

        def judge(row: int) -> _Judged:
            of_row, right = known[row], predicted[row] == true[row]
            share = int((right & of_row).sum()) / max(1, int(of_row.sum()))
            masks = _small(true[row]), _small(predicted[row])
            return _Judged(prediction=f"{share:.1%} of the pixels are right", masks=masks)

        return judge, counts

    def take_in(self, counts: Any) -> None:
        self._counts += counts

    def counts(self) -> Any:
        return self._counts

    def details(self) -> EvaluationDetails:
        number = len(self._names)
        confusion = {
            divmod(place, number): count for place, count in enumerate(self._counts.tolist()) if count
        }
        return EvaluationDetails(
            0, "pixel", self._names, _counts(confusion, number), _most_frequent(confusion)
        )


def _small(mask: Tensor) -> Any:
    """Return a mask as it is shown, which holds nothing of the micro-batch that it was in."""
    rows, columns = map(_middles, mask.shape)
    return mask[rows][:, columns].int().cpu().numpy()


def _middles(side: int) -> Tensor:
    """Return the places of a side's pixels that are shown."""
    count = min(side, SIDE)
    return ((torch.arange(count) + 0.5) * (side / count)).long()


class _Numbers:
    """Labels and predictions of rows with a number each, of at most twice as many rows as are drawn, at equal distances."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[float, float]] = {}  # by the place of their row
        self._step = 1

    def judged(self, outputs: Any, labels: Tensor, first: int) -> tuple[Judge, Any]:
        predicted, true = logits_of(outputs).flatten().tolist(), labels.flatten().tolist()
        rows = range(-first % self._step, len(true), self._step)
        pairs = {first + row: (true[row], predicted[row]) for row in rows}
        return lambda row: _Judged(f"{true[row]:.6g}", f"{predicted[row]:.6g}"), (self._step, pairs)

    def take_in(self, counts: Any) -> None:
        step, pairs = counts
        self._pairs |= pairs
        if step != self._step:
            self._thin(max(self._step, step))
        while len(self._pairs) > 2 * _MOST_NUMBERS:
            self._thin(2 * self._step)

    def _thin(self, step: int) -> None:
        self._step = step
        self._pairs = {place: pair for place, pair in self._pairs.items() if place % step == 0}

    def counts(self) -> Any:
        return self._step, self._pairs

    def details(self) -> EvaluationDetails:
        step = math.ceil(len(self._pairs) / _MOST_NUMBERS) or 1
        return EvaluationDetails(0, numbers=[self._pairs[place] for place in sorted(self._pairs)][::step])


def _most_frequent(confusion: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return the most frequent pairs, in an order that does not hang on who counted which rows."""
    ordered = sorted(confusion.items(), key=lambda each: (-each[1], each[0]))
    return dict(ordered[:_MOST_PAIRS])


def _counts(confusion: Mapping[tuple[int, int], int], number: int) -> list[ClassCounts]:
    true, predicted = Counter[int](), Counter[int]()
    for (own, other), count in confusion.items():
        true[own] += count
        predicted[other] += count
    return [
        ClassCounts(confusion.get((each, each), 0), predicted[each], true[each]) for each in range(number)
    ]
