"""What plans would need, told from few predictions: of the recipe's own plan at some sizes, and of each rung beside it by itself.

In each phase of the step, and for each role of its bytes, a rung leaves a share of them; several leave the product of their shares.
Where a plan with some of the rungs has been predicted, that is where the estimate goes on from. An estimate only says in which order
plans are worth predicting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from snugfit.core.technique import Technique
from snugfit.planner.answer import Prediction
from snugfit.planner.records import Phase, Role
from snugfit.planner.rungs import Techniques
from snugfit.planner.segments import ROLES

Table = npt.NDArray[np.float64]
"""Bytes by phase and role, at the peak of each phase."""

Times = npt.NDArray[np.float64]
"""Seconds of an update: those in which something is computed, and those in which a CPU starts it. The more micro-batches, the more of
the latter."""

_SETUP = list(Phase).index(Phase.SETUP)

_LASTING = [ROLES.index(role) for role in (Role.WEIGHTS, Role.GRADIENTS, Role.OPTIMIZER, Role.AVERAGES)]

_NOTICED = 0.99
"""A rung that leaves more than this of the bytes saves nothing."""


@dataclass(frozen=True)
class Estimate:
    """Of one plan: bytes that the device and the host have to have, and seconds of an update."""

    added: Techniques
    micro_batch: int
    reserved_bytes: float
    host_bytes: float
    seconds: float


@dataclass(frozen=True)
class _Effect:
    """Of a rung by itself: the share of the bytes that it leaves, those where there were none, and so for the host and the times."""

    share: Table
    more: Table
    host: float
    slower: Times


@dataclass
class Estimator:
    """Estimates for windows of `rows` examples.

    Args:
        loaded_so: whether with these rungs weights come in their format, so that what is made until they have it is not there.
        fixed_bytes: what a device has to have beside what the allocator takes, which takes more the more is allocated; None where all that
            is reserved beside the peak is fixed, as on a CPU.
    """

    rows: int
    loaded_so: Callable[[Techniques], bool] = lambda added: False
    fixed_bytes: int | None = None
    _base: dict[int, Prediction] = field(default_factory=dict)
    _effects: dict[Technique, _Effect] = field(default_factory=dict)
    _seen: dict[frozenset[Technique], dict[int, tuple[float, float]]] = field(default_factory=dict)

    def learn_base(self, micro_batch: int, found: Prediction) -> None:
        """Take in what the recipe's own plan needs."""
        self._base[micro_batch] = found

    def learn_rung(self, rung: Technique, found: Prediction, without: Prediction) -> None:
        """Take in what a rung does beside techniques without it, of the same micro-batch."""
        one, other = _table(found), _table(without)
        self._effects[rung] = _Effect(
            _share(one, other),
            np.where(other > 0, 0.0, one),
            found.host_peak_bytes - without.host_peak_bytes,
            _share(_times(found), _times(without)),
        )

    def learn_plan(self, added: Techniques, micro_batch: int, found: Prediction) -> None:
        """Take in a prediction, and how far the estimate was from it."""
        guess = self._guess(added, micro_batch)
        ratios = found.reserved_bytes / guess.reserved_bytes, found.seconds_per_update / guess.seconds
        self._seen.setdefault(frozenset(added), {})[micro_batch] = ratios

    def estimate(self, added: Techniques, micro_batch: int) -> Estimate:
        """What a plan would need, from what is known."""
        guess = self._guess(added, micro_batch)
        bytes, seconds = self._ratios(frozenset(added), micro_batch)
        return Estimate(
            added, micro_batch, guess.reserved_bytes * bytes, guess.host_bytes, guess.seconds * seconds
        )

    def _ratios(self, added: frozenset[Technique], micro_batch: int) -> tuple[float, float]:
        """By how much the estimate was wrong for the rungs most like these that have been predicted, at the nearest size."""
        alike = [each for each in self._seen if each & added]
        if not alike:
            return 1.0, 1.0
        sizes = self._seen[min(alike, key=lambda each: (len(each ^ added), len(each)))]
        return sizes[min(sizes, key=lambda size: abs(np.log(size / micro_batch)))]

    def _guess(self, added: Techniques, micro_batch: int) -> Estimate:
        table, (taken, fixed), host, times = self._own(micro_batch)
        effects = [self._effects[rung] for rung in added]
        for each in effects:
            table = table * each.share
        more = sum((each.more for each in effects), np.zeros_like(table))
        by_phase = (table + more).sum(axis=1)
        if self.loaded_so(added):
            by_phase[_SETUP] = 0.0
        peak = float(by_phase.max())
        host += sum(max(each.host, 0.0) for each in effects)
        for each in effects:
            times = times * each.slower
        return Estimate(added, micro_batch, peak * taken + fixed, host, float(times.sum()))

    def _own(self, micro_batch: int) -> tuple[Table, npt.NDArray[np.float64], float, Times]:
        """The recipe's own plan: its table, what is reserved for each byte of its peak and beside it, what the host has to have, and its times.

        Between two sizes bytes lie on a line over the size, and time on one over the number of micro-batches. A window that is
        taken whole keeps no gradients beside its pass, so that it tells nothing of smaller sizes.
        """
        if micro_batch in self._base:
            return self._facts(self._base[micro_batch])
        sizes = sorted(size for size in self._base if size < self.rows) or list(self._base)
        low = max((size for size in sizes if size < micro_batch), default=sizes[0])
        high = min((size for size in sizes if size > micro_batch), default=sizes[-1])
        one, other = self._facts(self._base[low]), self._facts(self._base[high])
        if low == high:
            return one
        share = (micro_batch - low) / (high - low)
        passes = (1 / low - 1 / micro_batch) / (1 / low - 1 / high)
        return (
            one[0] + (other[0] - one[0]) * share,
            one[1] + (other[1] - one[1]) * share,
            one[2] + (other[2] - one[2]) * share,
            one[3] + (other[3] - one[3]) * passes,
        )

    def _facts(self, found: Prediction) -> tuple[Table, npt.NDArray[np.float64], float, Times]:
        reserved, peak = found.reserved_bytes, found.peak_bytes
        fixed = reserved - peak if self.fixed_bytes is None else self.fixed_bytes
        beside = np.array([(reserved - fixed) / max(peak, 1), fixed])
        return _table(found), beside, found.host_peak_bytes, _times(found)


def _times(found: Prediction) -> Times:
    return np.array([found.seconds_per_update - found.host_seconds, found.host_seconds])


def _share(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """One over the other; 1 where there is no other."""
    return np.divide(one, other, out=np.ones_like(one), where=other > 0)


def _table(found: Prediction) -> Table:
    """Where nothing happens in a phase, there is what there is around it that lasts: a rung by which something happens adds to that."""
    by_phase = found.peak_by_phase
    table = np.array(
        [[by_phase.get(phase, {}).get(role, 0) for role in ROLES] for phase in Phase], dtype=float
    )
    used = [place for place, row in enumerate(table) if row.any() and place != _SETUP]
    filled = table.copy()
    for place in set(range(len(table))) - {*used, _SETUP}:
        before, after = [each for each in used if each < place], [each for each in used if each > place]
        filled[place, _LASTING] = table[[*before[-1:], *after[:1]]][:, _LASTING].max(axis=0, initial=0.0)
    return filled


def saves(found: Prediction, without: Prediction, usable: int) -> bool:
    """Whether a rung lowers the peak, or that of any phase that would not fit beside it."""
    if found.reserved_bytes < _NOTICED * without.reserved_bytes:
        return True
    one, other = (_table(each).sum(axis=1) for each in (found, without))
    over = other + without.reserved_bytes - without.peak_bytes > usable
    return bool((one[over] < _NOTICED * other[over]).any())


def smallest(estimates: Sequence[Estimate]) -> Estimate | None:
    """The one that needs the least of the device."""
    return min(
        estimates, key=lambda each: (round(each.reserved_bytes / 2**20), len(each.added)), default=None
    )
