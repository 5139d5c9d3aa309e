"""The draws of a mixture: which source, and which of its rows, each example of a run is; a pure function of (seed, epoch).

Sources alternate so that each has its part of the examples wherever one stops to count: after k examples of an epoch a source of weight w
has given ⌊k·w/W⌋ or ⌈k·w/W⌉ of them, W being the sum of the weights. Each source is drawn without replacement: all its rows, in an order
drawn from the seed, before any of them comes again, in the epoch after the one in which they were begun where they do not end with it.

Where rows are balanced by a column, its values take turns in the place of their source, and the rows of each value are drawn so. Sources come as
they would without, and an epoch has as many examples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from snugfit.core.random import derive_seed
from snugfit.data.examples import Balance, Examples, whole_examples
from snugfit.data.named_sources import Sources
from snugfit.errors import DataError

Numbers = NDArray[np.int64]

_DRAWS: WeakKeyDictionary[Examples, Draws] = WeakKeyDictionary()
"""Those of examples that are there: the start of a run asks several times for the same."""


class Draws:
    """The examples of each epoch of a mixture.

    Args:
        sources: with weights, or None where the rows are of one source, or of several that have none.
        members: the places of each source's examples in the data set.
        balance: of the examples; None where they are drawn as they come.

    >>> from snugfit.data.named_sources import sources_of
    >>> sources = sources_of({"a": {"from": "a.csv", "weight": 3}, "b": {"from": "b.csv", "weight": 1}})
    >>> draws = Draws(sources, [[0, 1, 2, 3, 4], [5, 6]])
    >>> draws.pattern.tolist(), draws.counts
    ([0, 0, 1, 0, 0, 0], (5, 1))
    >>> [array.tolist() for array in draws.epoch(seed=0, number=1, shuffle=False)]
    [[1, 1, 0, 1, 1, 1], [0, 1, 6, 2, 3, 4]]

    Raises:
        DataError: a source has no example.
    """

    def __init__(
        self,
        sources: Sources | None,
        members: Sequence[Sequence[int] | Numbers],
        balance: Balance | None = None,
    ) -> None:
        for source, own in zip(() if sources is None else sources.each, members, strict=sources is not None):
            if not len(own):
                raise DataError(
                    f"data.train.{source.name}", f"no usable row of {source.file} is left", "Give more rows."
                )
        self._members = [np.asarray(own, dtype=np.int64) for own in members]
        self.sizes = tuple(map(len, self._members))
        self.balance = balance
        whole = self._members
        self._names: tuple[Any, ...] = ("",) if sources is None else sources.names
        if sources is None or sources.weights is None:  # each row once, but for what is balanced
            self._members, self._names = [np.sort(np.concatenate(whole))], ("",)
            self.pattern: NDArray[np.integer[Any]] = np.zeros(sum(self.sizes), np.uint16)
        else:
            self.pattern = one_epoch(sources.weights, self.sizes, first=sources.stopping == "first_exhausted")
        if balance is not None:
            self._divide(balance)
        # the rows of each source among those that take turns; whole numbers where a turn is of one source
        self._sources = np.array(
            [[len(np.intersect1d(own, of)) / len(own) for of in whole] for own in self._members]
        )
        self.counts = self.counts_within(len(self.pattern))

    def _divide(self, balance: Balance) -> None:
        """Have the values of each source take turns in its place."""
        members, names = list[Numbers](), list[tuple[str, str]]()
        pattern = np.empty(len(self.pattern), np.int64)
        for source, own in enumerate(self._members):
            numbers = balance.numbers[own]
            values = np.unique(numbers).tolist()
            at = np.flatnonzero(self.pattern == source)
            pattern[at] = len(members) + np.arange(len(at)) % len(values)
            members += [own[numbers == value] for value in values]
            names += [(self._names[source], balance.names[value]) for value in values]
        self._members, self._names, self.pattern = members, tuple(names), pattern

    def __len__(self) -> int:
        return len(self.pattern)

    def counts_within(self, examples: int) -> tuple[float, ...]:
        """Return how many of the first examples of an epoch each source gives; on average, where values of several are drawn together."""
        own = np.bincount(self.pattern[:examples], minlength=len(self._names))
        return tuple(int(count) if count.is_integer() else count for count in (own @ self._sources).tolist())

    def by_value(self, examples: int) -> list[dict[str, Any]]:
        """Return what each value of the column that rows are balanced by is of the first examples of a run, over all sources."""
        if self.balance is None:
            return []
        epochs, rest = divmod(examples, len(self))
        count = len(self._names)
        own = epochs * np.bincount(self.pattern, minlength=count)
        own = own + np.bincount(self.pattern[:rest], minlength=count)
        given: dict[str, list[int]] = {}
        for (_, value), rows, drawn in zip(self._names, self._members, own.tolist(), strict=True):
            both = given.setdefault(value, [0, 0])
            both[0] += len(rows)
            both[1] += drawn
        return [
            {"name": value, "rows": rows, "share": drawn / examples, "epochs": drawn / rows}
            for value, (rows, drawn) in sorted(given.items())
        ]

    def without_turn(self) -> list[tuple[str, str]]:
        """Return the source and the value of rows that are balanced and never come."""
        if self.balance is None:
            return []
        own = np.bincount(self.pattern, minlength=len(self._names))
        return [name for name, count in zip(self._names, own.tolist(), strict=True) if not count]

    def counts_after(self, examples: int) -> tuple[float, ...]:
        """Return how many of the first examples of a run each source gives."""
        epochs, rest = divmod(examples, len(self))
        return tuple(
            epochs * own + more for own, more in zip(self.counts, self.counts_within(rest), strict=True)
        )

    def epoch(self, seed: int, number: int, shuffle: bool = True) -> tuple[Numbers, Numbers]:
        """Return of each example of an epoch the pass over its source that it belongs to, and its place in the data set."""
        passes, places = np.empty(len(self), np.int64), np.empty(len(self), np.int64)
        for source, (name, own) in enumerate(zip(self._names, self._members, strict=True)):
            at = np.flatnonzero(self.pattern == source)
            begun, within = np.divmod(number * len(at) + np.arange(len(at)), len(own))
            passes[at] = begun
            for each in range(int(begun[0]), int(begun[-1]) + 1) if len(at) else ():
                now = begun == each
                places[at[now]] = own[_order(len(own), seed, name, each, shuffle)[within[now]]]
        return passes, places


def _order(rows: int, seed: int, name: str | tuple[str, str], number: int, shuffle: bool) -> Numbers:
    """Return the order of a source's rows in one pass over them, or of those that have one value."""
    if not shuffle:
        return np.arange(rows)
    parts = (name,) if isinstance(name, str) else name
    generator = torch.Generator().manual_seed(derive_seed(seed, "order", *parts, number))
    order: Numbers = torch.randperm(rows, generator=generator).numpy()
    return order


def one_epoch(weights: Sequence[Fraction], sizes: Sequence[int], *, first: bool) -> NDArray[np.uint16]:
    """Return the number of the source of each example of an epoch.

    Args:
        sizes: rows of each source.
        first: the epoch ends with the last row of the first source that is through; else with that of the last one.

    >>> one_epoch([Fraction(2), Fraction(1)], [3, 9], first=True).tolist()
    [0, 1, 0, 0]
    """
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    shared = math.gcd(*whole)
    parts = [each // shared for each in whole]
    period, choose = sum(parts), min if first else max
    # within so many examples a source has given all its rows
    most = choose(-(-size * period // part) for size, part in zip(sizes, parts, strict=True))
    turns = alternating(tuple(parts), min(period, most))
    if period < most:
        turns = np.resize(turns, most)
    ends = []
    for number, size in enumerate(sizes):
        own = np.flatnonzero(turns == number)
        ends += [int(own[size - 1]) + 1] if len(own) >= size else []
    return turns[: choose(ends)]


@functools.lru_cache(maxsize=4)
def alternating(parts: tuple[int, ...], count: int) -> NDArray[np.uint16]:
    """Return the numbers of the sources of the first examples, by which each always has its part but for less than one example.

    With D = 2(n - 1) of n sources, the example number c of a source of weight w, counted from 0, is not drawn before position
    W(D·c + 1)/(D·w), and of those that may be drawn the one comes first that has to by W(D·c + D - 1)/(D·w).

    Source: Tijdeman 1980, The chairman assignment problem, Discrete Mathematics 32.

    >>> alternating((3, 2, 1), 12).tolist()
    [0, 1, 0, 2, 1, 0, 0, 1, 0, 2, 1, 0]
    """
    turns = np.zeros(count, np.uint16)
    sources = range(len(parts))
    if len(parts) == 1:
        return turns
    total, doubled = sum(parts), 2 * (len(parts) - 1)
    shared = math.lcm(*parts)
    urgency = [shared // part for part in parts]
    given = [0] * len(parts)
    for place in range(count):
        best, soonest = -1, 0
        for source in sources:
            if doubled * ((place + 1) * parts[source] - given[source] * total) < total:
                continue
            deadline = (doubled * given[source] + doubled - 1) * urgency[source]
            if best < 0 or deadline < soonest:
                best, soonest = source, deadline
        turns[place] = best
        given[best] += 1
    return turns


def mixed(dataset: Any) -> Draws | None:
    """Return the draws of a data set that is a mixture, or is balanced, whole; None of any other.

    Raises:
        DataError: a source has no example, or it or a value that is balanced gives none of an epoch.
    """
    examples = whole_examples(dataset)
    if examples is None:
        return None
    sources = examples.sources if examples.sources is not None and examples.sources.weights else None
    if sources is None and examples.balance is None:
        return None
    if examples not in _DRAWS:
        draws = Draws(examples.sources, examples.members(), examples.balance)
        if sources is not None:
            _check_each_gives(sources.names, draws)
            _check_each_value_comes(draws)
        _DRAWS[examples] = draws
    return _DRAWS[examples]


def _check_each_gives(names: Sequence[str], draws: Draws) -> None:
    """See that every source gives an example of each epoch: one that gives none of the first gives none of any.

    Raises:
        DataError: one does not.
    """
    for name, count in zip(names, draws.counts, strict=True):
        if not count:
            raise DataError(
                f"data.train.{name}",
                f"its weight gives it none of the {len(draws):,} examples of an epoch, which ends with the first source that is through",
                "Give it more weight, or let epochs end with the last one: data.stopping_strategy: all_exhausted.",
            )


def _check_each_value_comes(draws: Draws) -> None:
    """See that every value of each source has a turn in an epoch, whose turns are those of any other.

    Raises:
        DataError: one has none.
    """
    for source, value in draws.without_turn():
        raise DataError(
            "data.balance",
            f"rows of {source} with '{value}' would never come: an epoch has {len(draws):,} examples, and {source} gives fewer than it has values",
            f"Give {source} more weight, or let epochs end with the last source: data.stopping_strategy: all_exhausted.",
        )
