"""Metrics of written texts beside those that were to be written: exact match, chrF, ROUGE-L and BLEU.

Each is made of sums over rows, so that neither micro-batches nor ranks change it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from snugfit.core.batch import IGNORE_INDEX, Batch, labels_of
from snugfit.core.scalar_reads import is_fake, read
from snugfit.errors import SettingError
from snugfit.kit.language_models.written_texts import NO_TOKEN, WRITTEN
from snugfit.strategies.base import Strategy

_CHARACTERS = range(1, 7)
"""Lengths of the parts that chrF compares."""

_RECALL_COUNTS = 2.0
"""Times as much as the precision, in chrF."""

_WORDS = range(1, 5)
"""Lengths of the parts that BLEU compares."""

OfTexts = Callable[[str, str], Sequence[float]]
"""What is summed over rows, of the text that was written and the one that was to be."""


@dataclass(frozen=True)
class OfWrittenTexts:
    """A metric of written texts: a function of sums over rows.

    Args:
        decode: the text of tokens.
        sums: of one row.
        value: of the sums over all rows.
    """

    decode: Callable[[Sequence[int]], str]
    sums: OfTexts
    value: Callable[[Sequence[float]], float]

    def __call__(self, outputs: Any, data: Any) -> list[Sequence[float]]:
        """Return the sums of each row.

        Raises:
            SettingError: the model wrote no texts.
        """
        labels = labels_of(data)
        if is_fake(labels):
            return [self.sums("", "")] * len(labels)
        written = outputs.get(WRITTEN) if isinstance(outputs, Mapping) else None
        if written is None:
            raise SettingError(
                "evaluate.metrics",
                "has metrics of written texts, and the model has written none",
                "Use them with a task whose models write texts after reading others.",
            )
        both = zip(read(written, assume=[]), read(labels, assume=[]), strict=True)
        return [
            self.sums(self._text(own, NO_TOKEN), self._text(target, IGNORE_INDEX)) for own, target in both
        ]

    def _text(self, tokens: Sequence[int], filling: int) -> str:
        return self.decode([token for token in tokens if token != filling])


@dataclass
class TextScore:
    """The sums of the rows of an evaluation, and the metric of them."""

    metric: OfWrittenTexts
    rows: list[Sequence[float]] = field(default_factory=list)

    def update(self, outputs: Any, part: Batch) -> None:
        self.rows.extend(self.metric(outputs, part.data))

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        of_ranks = [sums for sums in strategy.tell(_added(self.rows)) if sums]
        return self.metric.value(_added(of_ranks)) if of_ranks else math.nan


def text_scores(
    answers: Sequence[tuple[str, Sequence[int]]], metrics: Mapping[str, OfWrittenTexts]
) -> dict[str, float]:
    """Return metrics of answers, each as it was written and as the tokens that were to be written."""
    scores = {name: TextScore(metric) for name, metric in metrics.items()}
    for score in scores.values():
        score.rows.extend(score.metric.sums(own, score.metric.decode(target)) for own, target in answers)
    return {name: score.compute(Strategy()) for name, score in scores.items()}


def _added(rows: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(each) for each in zip(*rows, strict=True)]


def text_metrics(decode: Callable[[Sequence[int]], str]) -> dict[str, OfWrittenTexts]:
    """Return the metrics of written texts by their names.

    Args:
        decode: the text of tokens.
    """
    return {name: OfWrittenTexts(decode, sums, value) for name, (sums, value) in _METRICS.items()}


def _mean(sums: Sequence[float]) -> float:
    return sums[0] / sums[1] if sums[1] else math.nan


def _exact_match(written: str, target: str) -> tuple[float, float]:
    return float(written == target), 1.0


def _rouge_l(written: str, target: str) -> tuple[float, float]:
    """Return the F1 of the longest common subsequence of words, in lower case and without signs.

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3; words as rouge-score has them, without stems, but of
    all alphabets.
    """
    own, true = _words(written), _words(target)
    common = _common(own, true)
    return (2 * common / (len(own) + len(true)) if own and true else 0.0), 1.0


def _words(text: str) -> list[str]:
    spaced = "".join(each if each.isalnum() else " " for each in text.lower())
    return spaced.split()


def _common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    >>> _common("abcd", "xbxd")
    2
    """
    lengths = [0] * (len(right) + 1)
    for one in left:
        before = 0
        for place, other in enumerate(right, 1):
            before, lengths[place] = (
                lengths[place],
                before + 1 if one == other else max(lengths[place], lengths[place - 1]),
            )
    return lengths[-1]


def _parts(units: Sequence[Any], size: int) -> Counter[Any]:
    return Counter(tuple(units[place : place + size]) for place in range(len(units) - size + 1))


def _counts(own: Sequence[Any], true: Sequence[Any], sizes: range) -> list[float]:
    """Return for each size how many parts are in both, in the first and in the second."""
    counts: list[float] = []
    for size in sizes:
        ours, theirs = _parts(own, size), _parts(true, size)
        counts += [(ours & theirs).total(), ours.total(), theirs.total()]
    return counts


def _chrf_counts(written: str, target: str) -> list[float]:
    return _counts("".join(written.split()), "".join(target.split()), _CHARACTERS)


def _chrf(sums: Sequence[float]) -> float:
    """Return the mean over lengths of the F-score of parts of so many characters, in which recall counts twice; of all rows together.

    Source: Popović 2015, doi:10.18653/v1/W15-3049, with β = 2 as sacreBLEU has it; lengths that one side has no part of are left out.
    """
    scores = []
    for common, own, true in zip(sums[::3], sums[1::3], sums[2::3], strict=True):
        if own and true:
            precision, recall, weight = common / own, common / true, _RECALL_COUNTS**2
            both = weight * precision + recall
            scores.append((1 + weight) * precision * recall / both if both else 0.0)
    return sum(scores) / len(scores) if scores else 0.0


def _bleu_counts(written: str, target: str) -> list[float]:
    own, true = written.split(), target.split()
    return [*_counts(own, true, _WORDS), len(own), len(true)]


def _bleu(sums: Sequence[float]) -> float:
    """Return the geometric mean of the precisions of 1 to 4 words in a row, less what is too short; of all rows together, not smoothed.

    Source: Papineni et al. 2002, doi:10.3115/1073083.1073135; words are parted by spaces alone.
    """
    *counts, own, true = sums
    pairs = list(zip(counts[::3], counts[1::3], strict=True))
    if not all(common for common, _ in pairs):
        return 0.0
    mean = sum(math.log(common / whole) for common, whole in pairs) / len(pairs)
    return math.exp(mean + min(0.0, 1 - true / own))


_METRICS: Mapping[str, tuple[OfTexts, Callable[[Sequence[float]], float]]] = {
    "exact_match": (_exact_match, _mean),
    "chrf": (_chrf_counts, _chrf),
    "rouge_l": (_rouge_l, _mean),
    "bleu": (_bleu_counts, _bleu),
}

OF_TEXTS = tuple(_METRICS)
