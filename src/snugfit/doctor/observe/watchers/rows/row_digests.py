"""Digests of the rows that were trained on and of those that were evaluated; no contents."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snugfit.doctor.observe.events.log import Overlap
from snugfit.doctor.observe.watchers.rows.row_repeats import RowRepeats
from snugfit.doctor.observe.watchers.rows.row_steps import RowSteps

MOST_ROWS = 200_000
LEAST_WIDE, MOST_WINDOWS, LEAST_BESIDE, LEAST_SHARE, MOST_SAME = 6, 1024, 8, 0.5, 0.1
"""Windows of a series: their columns, how many are known of those that are trained on, and how many of others lie beside them."""
SAMPLED = 1024
LEAST_DISTINCT = 4
LEAST_VARIED = 0.5
MOST_PENDING = 4
MOST_STREAMED = 128
"""Passes without a loader, most of which bring new rows, after which they are taken for a stream."""
MOST_KNOWN = 8
"""Passes in turn that bring no new row, after which there are none."""
LEAST_APART, TIMES_APART = 3, 4
"""Passes without a trained row from which on they are a part that was held out, and how many times as many they are as by chance."""
DEVIATIONS_APART = 3
"""How far the numbers of trained rows in passes that are drawn anew vary beyond chance, from which on the passes are of two parts: a text that repeats itself has some in both."""
_BITS = {1: torch.int8, 2: torch.int16}
"""Types to read numbers as that NumPy does not have."""
_FACTORS = np.random.Generator(np.random.PCG64(23)).integers(-(2**62), 2**62, 2 * SAMPLED) | 1
"""For each place of a row, the same in each process; of a generator of their own."""


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors of arguments, containers opened once, but for nested ones, which have no shape."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple):
            tensors += [each for each in value if isinstance(each, Tensor)]
        elif hasattr(value, "values") and callable(value.values):
            tensors += [each for each in value.values() if isinstance(each, Tensor)]
    return [each for each in tensors if not each.is_nested]


def row_digests(batch: Tensor) -> list[int]:
    """Return a digest of each row (the first axis) that has something to tell it by; padding at the end does not count.

    All rows at once: sums of their bits times numbers that were drawn, of 64 bits. Whole numbers count up to the last that
    differs from the one behind it, so that it does not matter how far a row is padded. In NumPy, whose calls take a third of the time
    of torch's where there is little to compute.
    """
    flat = batch.detach().reshape(batch.shape[0], -1)
    flat = flat[:, :: max(1, flat.shape[1] // SAMPLED)].cpu().contiguous()
    floating = flat.is_floating_point()
    if flat.shape[1] < (2 if floating else LEAST_DISTINCT):
        return []
    if floating:
        values = (flat.view(_BITS[flat.element_size()]) if flat.element_size() < 4 else flat).numpy()
        wide, values = values.itemsize == 8, values.view(f"i{values.itemsize}").astype(np.int64)
        if wide:  # a product keeps the zeros at the end, which whole numbers of 64 bits have 40 of and more
            values ^= values >> 32
        tells = (values != values[:, :1]).any(1)
    else:
        values = flat.numpy().astype(np.int64)
        ends = np.logical_and.accumulate((values == values[:, -1:])[:, ::-1], axis=1)[:, ::-1]
        ordered = np.sort(values, axis=1)
        tells = (ordered[:, 1:] != ordered[:, :-1]).sum(1) >= LEAST_DISTINCT - 1
        values = values + 1
        values[:, 1:][ends[:, :-1] & ends[:, 1:]] = 0  # the first of the padding counts
    digests: list[int] = (values @ _FACTORS[: values.shape[1]])[tells].tolist()
    return digests


def distinct_input(batch: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return the input of a model whose rows tell examples apart: measurements beside whole numbers that many examples share, such as kinds of atoms.

    >>> kinds, places = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]]), torch.tensor([[0.1, 0.2], [0.3, 0.5]])
    >>> distinct_input(kinds, [kinds, places]) is places, distinct_input(kinds, [kinds, torch.ones(2, 4)]) is kinds
    (True, True)
    """
    if batch.is_floating_point():
        return batch
    measured = (each for each in inputs if each.is_floating_point() and each.dim() > 1 and _has_rows(each))
    return next((each for each in measured if len({*row_digests(each)}) == len(batch)), batch)


@dataclass(frozen=True)
class _Passed:
    """A batch that went through a model."""

    model: int
    rows: list[int]
    loader: int
    at: str


@dataclass
class _Evaluated:
    at: str
    rows: set[int] = field(default_factory=set)
    times: int = 0
    rounds: set[int] = field(default_factory=set)
    passes: list[set[int]] = field(default_factory=list)


class Rows:
    """Rows become trained ones when a backward pass follows their forward pass, evaluated ones when none does.

    Each model has its own: the validation rows of one fold are trained on by the model of another.
    """

    def __init__(self) -> None:
        self.first: list[int] = []
        self.loader = 0
        self.ended = False
        self._trained: dict[int, set[int]] = {}
        self._evaluated: dict[tuple[int, int], _Evaluated] = {}
        self._pending: list[_Passed] = []
        self._recent: list[_Passed] = []
        self._trainers: set[int] = set()
        self._rows = 0
        self._few = False
        self.scored: list[int] = []
        self.brings_new = True
        self._known_passes = 0
        self._all_known = 0
        self._passes = 0
        self._without_graph: list[tuple[int, list[int]]] = []
        self.steps = RowSteps()
        self.repeats = RowRepeats()
        self._by_copies: dict[int, set[int]] = {}
        self._heads: set[int] = set()
        self._tails: set[int] = set()
        self._scored_windows: dict[str, list[tuple[int, int, int]]] = {}

    def forward(self, model: int, batch: Tensor, at: str, *, grad: bool, place: int) -> None:
        """Note the batch of a model; 0 stands for an average, which was trained on what any model was. `place` is that of the event."""
        if self._rows > MOST_ROWS or not _has_rows(batch):
            return
        digests = row_digests(batch)
        self._rows += len(digests)
        self._few = self._few or len(set(digests)) < LEAST_VARIED * len(digests)
        passed = _Passed(model, digests, self.loader, at)
        self._note_windows(batch, digests, at, grad=grad)
        if not grad:
            self.scored = digests
            self._without_graph.append((place, digests))
            if self.loader:
                self._evaluate(passed)
            else:
                self._recent.append(passed)
            return
        if self.loader:
            self.repeats.look_at(self.loader, batch)
        else:
            self.steps.note(batch, at)
            self._note_halves(model, batch)
        self._pending.append(passed)
        while len(self._pending) > MOST_PENDING:
            self._evaluate(self._pending.pop(0))

    @property
    def in_graph(self) -> tuple[int, int, list[int]]:
        """Return the model of the last pass with a graph, of which nothing was differentiated yet, how many backward passes were before it, and digests of its rows."""
        last = self._pending[-1] if self._pending else None
        return (0, 0, []) if last is None else (last.model, self._passes, last.rows)

    def scored_by_copy(self, batch: Tensor) -> None:
        """Note the batch of a loader that nothing trains on, where a model that does not train is given it, as the copy of the best one is."""
        if self.loader and self.loader not in self._trainers and self._rows <= MOST_ROWS and _has_rows(batch):
            digests = row_digests(batch)
            self._rows += len(digests)
            self._by_copies.setdefault(self.loader, set()).update(digests)

    def _note_windows(self, batch: Tensor, digests: list[int], at: str, *, grad: bool) -> None:
        """Note rows of numbers without their first and without their last column: windows of a series share all but one with the next."""
        wide = batch.is_floating_point() and batch.dim() in (2, 3) and LEAST_WIDE <= batch.shape[1] <= SAMPLED
        known = (
            len(self._heads) > MOST_WINDOWS if grad else len(self._scored_windows.get(at, ())) > MOST_WINDOWS
        )
        if not wide or known or len(digests) != len(batch):
            return
        heads, tails = row_digests(batch[:, :-1]), row_digests(batch[:, 1:])
        if grad:
            self._heads.update(heads)
            self._tails.update(tails)
        elif len(heads) == len(tails) == len(digests):
            self._scored_windows.setdefault(at, []).extend(zip(digests, heads, tails, strict=True))

    def _note_halves(self, model: int, batch: Tensor) -> None:
        """Note how pieces of a text begin and go on."""
        if batch.dim() == 2 and not batch.is_floating_point() and batch.shape[1] >= 2 * LEAST_DISTINCT:
            half = batch.shape[1] // 2
            fronts, backs = row_digests(batch[:, :half]), row_digests(batch[:, half:])
            if len(fronts) == len(batch):
                self.repeats.drawn(model, fronts, backs)

    def shared_windows(self) -> tuple[str, int, int] | None:
        """Return the line that scores windows which lie beside windows that were trained on, how many, and of how many; None where hardly any do."""
        trained = set[int]().union(*self._trained.values())
        for at, windows in self._scored_windows.items():
            neighbours = {row for row, head, tail in windows if head in self._tails or tail in self._heads}
            same = neighbours & trained
            # of rows that are split in time those at the cut alone have a neighbour, at random nearly all of which the neighbours are known
            many = LEAST_SHARE * len(windows) * len(self._heads) / max(len(trained), len(self._heads), 1)
            if len(neighbours) >= max(LEAST_BESIDE, many) and len(same) <= MOST_SAME * len(neighbours):
                return at, len(neighbours), len({row for row, *_ in windows})
        return None

    def backward(self) -> None:
        """Count what is pending as trained on."""
        self._evaluate_recent()
        self._passes += 1
        for passed in self._pending:
            trained = self._trained.setdefault(passed.model, set())
            self._known_passes = self._known_passes + 1 if trained.issuperset(passed.rows) else 0
            self._all_known += self._known_passes > 0
            streams = not self.loader and self._passes > MOST_STREAMED and 2 * self._all_known < self._passes
            self.brings_new = self._known_passes < MOST_KNOWN and not streams
            trained.update(passed.rows)
            if passed.loader:
                self.repeats.handed(passed.model, passed.loader, passed.rows)
            self.first = self.first or passed.rows
            self._trainers.add(passed.loader)
        self._pending.clear()

    def forget_pending(self) -> None:
        """Leave out what is pending, where nobody saw whether a backward pass followed."""
        self._pending.clear()

    def stepped(self) -> None:
        """Note an optimizer step: what comes after it is no longer from the loader that has ended."""
        if self.ended:
            self.loader, self.ended = 0, False

    def _evaluate(self, passed: _Passed) -> None:
        seen = self._evaluated.setdefault((passed.model, passed.loader), _Evaluated(passed.at))
        seen.rows.update(passed.rows)
        seen.times += len(passed.rows)
        seen.rounds.add(self._passes)
        if not passed.loader and passed.rows:
            seen.passes.append(set(passed.rows))

    def _evaluate_recent(self) -> None:
        """Count passes without a graph as evaluated, but for those on the rows of a pending one: a teacher gives their targets."""
        learned = [set(each.rows) for each in self._pending]
        for passed in self._recent:
            if set(passed.rows) not in learned:
                self._evaluate(passed)
        self._recent.clear()

    def held_out(self) -> list[int]:
        """Return the places of the passes without a graph on rows that no model was trained on, before or after.

        There are none where rows are too alike to tell.
        """
        everything = set[int]().union(*self._trained.values())
        if self._few or not everything:
            return []
        return [place for place, rows in self._without_graph if rows and everything.isdisjoint(rows)]

    def digests(self) -> tuple[set[int], set[int]]:
        """Return the digests of the rows that any model was trained on, and of those that one was evaluated on."""
        self._evaluate_recent()
        trained = set[int]().union(*self._trained.values())
        return trained, set[int]().union(*(each.rows for each in self._evaluated.values()))

    def overlaps(self) -> list[Overlap]:
        """Return, for each source of evaluated rows that is not the source of the trained ones, how many are trained ones.

        Nothing where batches repeat rows: such rows are too alike to tell.
        """
        self._evaluate_recent()
        for passed in self._pending:
            self._evaluate(passed)
        self._pending.clear()
        everything = set[int]().union(*self._trained.values())
        shared_rows = []
        for (model, loader), seen in self._evaluated.items():
            trained = self._trained.get(model, set()) if model else everything
            if seen.rows and trained and not self._few and (loader == 0 or loader not in self._trainers):
                shared = len(seen.rows & trained)
                drawn = len(seen.rounds) > 1 and 2 * len(seen.rows) > seen.times
                whole = trained <= seen.rows
                apart = (
                    _are_of_two_kinds(seen.passes, trained)
                    or (drawn and _vary_beyond_chance(seen.passes, trained))
                    or _are_all_or_none(seen.passes, trained)
                )
                repeated = self.repeats.share(model)
                shared_rows.append(
                    Overlap(loader, seen.at, len(seen.rows), shared, whole, drawn, apart, repeated=repeated)
                )
        return shared_rows

    def alike(self) -> list[list[int]]:
        """Return the pairs of loaders whose rows are the same, and which nothing trains on; none where batches repeat rows."""
        handed = {loader: set(rows) for loader, rows in self._by_copies.items() if rows}
        for (_, loader), seen in self._evaluated.items():
            if loader and loader not in self._trainers and seen.rows:
                handed.setdefault(loader, set()).update(seen.rows)
        pairs = itertools.combinations(sorted(handed.keys() - self._trainers), 2)
        return [] if self._few else [[one, other] for one, other in pairs if handed[one] == handed[other]]


def _has_rows(batch: Tensor) -> bool:
    """Return whether a batch has rows of equal form to compare, which a sparse or nested one has not."""
    whole = batch.layout is torch.strided and not batch.is_nested
    return whole and not batch.is_complex() and batch.numel() > 0


def _are_of_two_kinds(passes: list[set[int]], trained: set[int]) -> bool:
    """Return whether far more passes have no row that was trained on than if those rows lay among all of them by chance: both parts are scored."""
    rows = sum(map(len, passes))
    if not rows:
        return False
    share = sum(len(each & trained) for each in passes) / rows
    without = sum(each.isdisjoint(trained) for each in passes)
    by_chance = sum((1 - share) ** len(each) for each in passes)
    return without >= LEAST_APART and without >= TIMES_APART * by_chance


def _are_all_or_none(passes: list[set[int]], trained: set[int]) -> bool:
    """Return whether each pass has all rows that were trained on and no other, as a whole graph, or none of them."""
    return bool(passes) and all(each == trained or each.isdisjoint(trained) for each in passes)


def _vary_beyond_chance(passes: list[set[int]], trained: set[int]) -> bool:
    """Return whether rows that were trained on are many in some passes and few in others, as draws from one pool are not."""
    rows = sum(map(len, passes))
    share = sum(len(each & trained) for each in passes) / rows if rows else 0.0
    if not 0 < share < 1:
        return False
    ratios = [
        (len(each & trained) - share * len(each)) ** 2 / (share * (1 - share) * len(each)) for each in passes
    ]
    return sum(ratios) >= len(passes) + DEVIATIONS_APART * math.sqrt(2 * len(passes))
