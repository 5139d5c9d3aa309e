"""Folds of a data set, what leaks from one side of them to the other, and what their scores say together."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from snugfit.core.random import derive_seed
from snugfit.errors import DataError, MissingExtra, SettingError
from snugfit.tools.many_runs.outcome import Outcome
from snugfit.units import counted


@dataclass(frozen=True)
class FoldSettings:
    """The settings of folds: `folds` parts, `repeats` times; `stratified` keeps the share of each label in every part.

    Each is trained from `seeds` seeds, one after the other: that of the recipe, and those that follow it.

    Of parts in time, `forward`, each is held out by a model that trains on the rows before it; the first part is trained on alone.
    """

    folds: int = 5
    repeats: int = 1
    stratified: bool = False
    seed: int = 0
    forward: bool = False
    seeds: int = 1

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise SettingError("folds", f"{self.folds} is too few: one part is held out", "Give 2 or more.")
        for name, count in (("repeats", self.repeats), ("seeds", self.seeds)):
            if count < 1:
                raise SettingError(name, f"{count} is too few", "Give 1 or more.")
        if self.forward and self.repeats > 1:
            raise SettingError(
                "repeats", f"got {self.repeats}, and parts in time can be made in one way", "Leave it out."
            )
        if self.forward and self.stratified:
            raise SettingError(
                "stratified", "is asked for, and parts in time have the labels of their time", "Leave it out."
            )


@dataclass(frozen=True)
class Fold:
    """A part of the rows to validate on, and all others to train on; `repeat`, `number` and `seed` count from 1."""

    repeat: int
    number: int
    training: tuple[int, ...]
    validation: tuple[int, ...]
    seed: int = 1

    @property
    def name(self) -> str:
        return f"fold-{self.repeat}-{self.number}{'' if self.seed == 1 else f'{_SEED}{self.seed}'}"


_SEED = "-seed-"


def deal(
    rows: int,
    settings: FoldSettings,
    labels: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
    times: Sequence[float] | None = None,
) -> list[list[int]]:
    """Return for each repeat the number (from 1) of the fold in which each row is held out; 0 for rows that are trained on alone.

    A pure function of its arguments and of scikit-learn's version: the same seed deals the same folds.

    Args:
        labels: of each row; only looked at where the folds are stratified.
        groups: of each row; the rows of one group are held out together.
        times: of each row, where folds follow one another in time.
    Raises:
        SettingError, DataError: there are too few rows, rows of a label, groups, or times.
        MissingExtra: scikit-learn is not installed.

    >>> deal(4, FoldSettings(folds=2), groups=["a", "b", "a", "b"])[0] in ([1, 2, 1, 2], [2, 1, 2, 1])
    True
    """
    _check_counts(rows, settings, labels, groups)
    if times is not None:
        return [deal_in_time(times, settings.folds)]
    if find_spec("sklearn") is None:
        raise MissingExtra("scikit-learn", "cv")
    import numpy
    from sklearn import model_selection

    makers = {
        (False, False): model_selection.KFold,
        (True, False): model_selection.StratifiedKFold,
        (False, True): model_selection.GroupKFold,
        (True, True): model_selection.StratifiedGroupKFold,
    }
    maker = makers[settings.stratified, groups is not None]
    dealt = []
    for repeat in range(1, settings.repeats + 1):
        seed = derive_seed(settings.seed, "cross validation", repeat) % 2**32
        parts = maker(settings.folds, shuffle=True, random_state=seed).split(
            numpy.zeros(rows),
            None if labels is None else _codes(labels),
            None if groups is None else _codes(groups),
        )
        held_out = [0] * rows
        for number, (_, validation) in enumerate(parts, 1):
            for row in validation:
                held_out[row] = number
        dealt.append(held_out)
    return dealt


def deal_in_time(times: Sequence[float], folds: int) -> list[int]:
    """Return the number of the part of each row, of one part more than folds, in the order of times; rows of one time are in one part.

    Raises:
        SettingError: a part would be empty.

    >>> deal_in_time([3, 1, 2, 3, 4, 4], 2)
    [1, 0, 0, 1, 2, 2]
    """
    counts, before, number = Counter(times), 0, {}
    for moment in sorted(counts):
        # the part in which the middle of its rows lies
        number[moment] = int((before + counts[moment] / 2) / len(times) * (folds + 1))
        before += counts[moment]
    if len(set(number.values())) <= folds:
        raise SettingError(
            "folds",
            f"{folds} of {len(counts):,} different times: rows of one time stay together, and a part would be empty",
            "Ask for fewer.",
        )
    return [number[moment] for moment in times]


def folds_of(dealt: Sequence[Sequence[int]], *, forward: bool = False, seeds: int = 1) -> Iterator[Fold]:
    """Yield the folds, in order, from what `deal` returned.

    Args:
        forward: each trains on the parts before its own alone.
        seeds: that each is trained from.

    >>> [(fold.name, fold.training, fold.validation) for fold in folds_of([[1, 2, 1]])]
    [('fold-1-1', (1,), (0, 2)), ('fold-1-2', (0, 2), (1,))]
    >>> [(fold.training, fold.validation) for fold in folds_of([[0, 1, 2]], forward=True)]
    [((0,), (1,)), ((0, 1), (2,))]
    """
    rows = list(range(len(dealt[0])))  # one number for all folds, of many rows
    for repeat, numbers in enumerate(dealt, 1):
        for number in range(1, max(numbers) + 1):
            trained = tuple(
                row
                for row, its in zip(rows, numbers, strict=True)
                if (its < number if forward else its != number)
            )
            held_out = tuple(row for row, its in zip(rows, numbers, strict=True) if its == number)
            for seed in range(1, seeds + 1):
                yield Fold(repeat, number, trained, held_out, seed)


def check_folds(
    folds: Sequence[Fold],
    labels: Sequence[Hashable] | None = None,
    groups: Sequence[Hashable] | None = None,
) -> None:
    """See that no fold trains on what it is scored on, and that each can be trained and scored.

    Raises:
        DataError: a row or a group is on both sides, a side is empty, or a label is held out that is not trained.
    """
    for fold in folds:
        if not fold.training or not fold.validation:
            side = "train" if not fold.training else "validate"
            raise DataError(fold.name, f"no row is left to {side} on", "Ask for fewer folds.")
        _refuse_shared(fold, "row", list(range(max(*fold.training, *fold.validation) + 1)))
        if groups is not None:
            _refuse_shared(fold, "group", groups)
        if labels is not None:
            missing = {labels[row] for row in fold.validation} - {labels[row] for row in fold.training}
            if missing:
                raise DataError(
                    fold.name,
                    f"all rows of the label{('' if len(missing) == 1 else 's')} {_some(missing)} are held out, so it cannot "
                    "be learned",
                    "Ask for stratified or for fewer folds.",
                )


def _refuse_shared(fold: Fold, what: str, keys: Sequence[Hashable]) -> None:
    shared = {keys[row] for row in fold.training} & {keys[row] for row in fold.validation}
    if shared:
        raise DataError(
            fold.name,
            f"{counted(len(shared), what)} ({_some(shared)}) both trained and scored: "
            "its scores would say nothing",
            "Begin a new cross-validation.",
        )


def leaking(folds: Sequence[Fold], contents: Sequence[Hashable]) -> int:
    """Return how many held-out rows, over all folds, have the content of a row that their fold trains on."""
    count = 0
    for fold in folds:
        known = {contents[row] for row in fold.training}
        count += sum(contents[row] in known for row in fold.validation)
    return count


@dataclass(frozen=True)
class Spread:
    """The distance between the scores of folds.

    `deviation` is the standard deviation (n - 1 below), `error` that of the mean, were folds independent. They share training
    rows, so that is too small; `corrected_error` counts that in (Nadeau & Bengio 2003, Machine Learning 52:239).
    """

    deviation: float
    error: float
    corrected_error: float


@dataclass(frozen=True)
class Summary:
    """Mean and spread of each metric."""

    mean: Mapping[str, float]
    spread: Mapping[str, Spread]


def summarise(scores: Sequence[Mapping[str, float]], held_out: float) -> Summary:
    """Mean and spread over folds of every metric that all of them have.

    Args:
        held_out: held-out rows for each training row, on average: 1/4 for 5 folds.
    >>> found = summarise([{"accuracy": 0.5}, {"accuracy": 0.7}], held_out=1.0)
    >>> found.mean["accuracy"], round(found.spread["accuracy"].error, 3)
    (0.6, 0.1)
    """
    names = [name for name in scores[0] if all(name in each for each in scores)] if scores else []
    columns = {name: [float(each[name]) for each in scores] for name in names}
    spread = {}
    for name, values in columns.items():
        deviation = (
            statistics.stdev(values) if all(map(math.isfinite, values)) and len(values) > 1 else math.nan
        )
        count = len(values)
        spread[name] = Spread(
            deviation, deviation / math.sqrt(count), deviation * math.sqrt(1 / count + held_out)
        )
    return Summary({name: statistics.fmean(values) for name, values in columns.items()}, spread)


@dataclass(frozen=True)
class FoldScore:
    """The scores of one fold: the metrics of its best weights and of its last ones."""

    fold: str
    training_rows: int
    validation_rows: int
    best: Mapping[str, float]
    best_update: int
    last: Mapping[str, float]
    updates: int
    seconds: float
    run_dir: str


@dataclass(frozen=True, repr=False)
class CrossValidation(Outcome):
    """The scores of all folds that are finished.

    `summary` is of each fold's best weights, which are chosen on the rows that score them; `last`, of the last weights, is not.
    """

    scores: tuple[FoldScore, ...]
    notes: tuple[str, ...] = ()
    summary: Summary = field(init=False)
    last: Summary = field(init=False)

    def __post_init__(self) -> None:
        ratios = [each.validation_rows / each.training_rows for each in self.scores]
        ratio = statistics.fmean(ratios) if ratios else math.nan
        for name, part in (("summary", "best"), ("last", "last")):
            object.__setattr__(self, name, summarise(self._of_folds(part), ratio))

    def _of_folds(self, part: str) -> list[Mapping[str, float]]:
        """Return the scores of each fold, the mean of those of its seeds: these share all rows, and would make the error of the mean too small."""
        groups: dict[str, list[Mapping[str, float]]] = {}
        for each in self.scores:
            groups.setdefault(_without_seed(each), []).append(getattr(each, part))
        return [group[0] if len(group) == 1 else summarise(group, math.nan).mean for group in groups.values()]

    @property
    def finished(self) -> bool:
        return len(self.scores) == self.planned

    @property
    def message(self) -> str:
        """The mean of every metric with its standard deviation, in a sentence."""
        means = [
            f"{name} {mean:.4g} ± {self.summary.spread[name].deviation:.2g}"
            for name, mean in self.summary.mean.items()
        ]
        folds, runs = len({_without_seed(each) for each in self.scores}), len(self.scores)
        over = f"{runs} of {self.planned} folds"
        if any(_SEED in each.fold for each in self.scores):  # of which a fold counts once
            over = f"{counted(folds, 'fold')}, {runs} of {self.planned} runs from several seeds"
        return f"{', '.join(means) or 'nothing yet'}, over {over}"

    def summary_lines(self) -> list[str]:
        """Return the means, and each fold's scores."""
        folds = [
            f"  {each.fold if _SEED in each.fold else f'fold {number}'}  "
            + ", ".join(f"{name} {value:.4g}" for name, value in each.best.items())
            for number, each in enumerate(self.scores, 1)
        ]
        return [f"CrossValidation: {self.message}", *folds, f"  folder  {self.folder}"]

    def page(self) -> str:
        from snugfit.tools.cross_validation.page import render_cv_page  # which is of this

        return render_cv_page(self)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "finished": self.finished,
            "stop_reason": self.stop_reason,
            "folds": [asdict(each) for each in self.scores],
            **asdict(self.summary),
            "last": asdict(self.last),
            "notes": list(self.notes),
            "folder": self.folder,
        }


def _without_seed(score: FoldScore) -> str:
    return score.fold.partition(_SEED)[0]


def _check_counts(
    rows: int,
    settings: FoldSettings,
    labels: Sequence[Hashable] | None,
    groups: Sequence[Hashable] | None,
) -> None:
    if settings.folds > rows:
        raise SettingError(
            "folds", f"{settings.folds} of {rows} rows: a fold would be empty", "Ask for fewer."
        )
    if groups is not None and len(set(groups)) < settings.folds:
        raise SettingError(
            "folds",
            f"{settings.folds} of {len(set(groups))} groups: a group is held out whole, so there are at most as "
            "many folds as groups",
            "Lower it.",
        )
    if settings.stratified:
        if labels is None:
            raise SettingError("stratified", "the rows have no labels", "Ask for --no-stratified.")
        label, count = min(Counter(labels).items(), key=lambda each: each[1])
        if count < settings.folds:
            raise DataError(
                "folds",
                f"the label {label!r} has {counted(count, 'row')}, so it cannot be in each of "
                f"{settings.folds} folds",
                f"Ask for {max(count, 2)} folds, add rows, or use --no-stratified.",
            )


def _codes(values: Sequence[Hashable]) -> list[int]:
    """Return numbers in place of values, which may be tuples or of several types."""
    known: dict[Hashable, int] = {}
    return [known.setdefault(value, len(known)) for value in values]


def _some(values: set[Hashable]) -> str:
    shown = sorted(map(repr, values))
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
