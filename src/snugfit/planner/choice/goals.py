"""Goals: what a plan is chosen for, and the numbers that say what a choice is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from snugfit.core.card import Fidelity
from snugfit.errors import SettingError, nearest

if TYPE_CHECKING:
    from snugfit.planner.choice.candidate import Candidate

Plan = TypeVar("Plan")

GoalName = Literal["fastest", "finest", "smallest", "cheapest"]
GOALS: tuple[GoalName, ...] = get_args(GoalName)
"""The least time of the whole run; the finest precision; the least memory within some times the least time; the least price."""

WORTH = 1.5
"""Times as fast that a plan below mixed precision has to be where something finer fits: it changes what is learned."""

SLOWER = 2.0
"""Times the least time that the smallest plan may take."""

ALIKE = 1.05
"""Times the least time, or the least price, up to which plans are alike: the more faithful one is taken, then the simpler one."""

FREE = Fidelity.MIXED
"""The level down to which precision costs nothing that is learned; what goes below has to buy something."""


@dataclass(frozen=True)
class Goal:
    """The goal of the choice.

    Args:
        name: `fastest`: the least time. `finest`: the least time at the finest level at which anything fits. `smallest`: the least
            memory among those that take no more than `slower` times as long as the fastest. `cheapest`: as `fastest` on each number of
            devices, of which `cheapest` takes the one of the least price.
        worth: how many times as fast a plan of a level below `mixed` has to be to be taken where a finer one fits.
        slower: see `smallest`.
    """

    name: str = "fastest"
    worth: float = WORTH
    slower: float = SLOWER

    def choose(self, candidates: Iterable[Candidate]) -> Candidate | None:
        """Return the choice among plans, of those that fit; None where none does."""
        fitting = [each for each in candidates if each.fits]
        if not fitting:
            return None
        if self.name == "finest":
            finest = min(each.level for each in fitting)
            return fastest([each for each in fitting if each.level is finest])
        best = self._worthwhile(fitting)
        if self.name != "smallest":
            return best
        limit = self.slower * best.prediction.seconds_per_update
        near = [each for each in fitting if each.level <= max(best.level, FREE)]
        return min(
            (each for each in near if each.prediction.seconds_per_update <= limit),
            key=lambda each: (each.prediction.most_bytes, each.level, len(each.added)),
        )

    def limit(self, level: Fidelity, candidates: Iterable[Candidate]) -> float:
        """Return seconds of an update below which a plan of this level would be the choice beside these."""
        fitting = [each for each in candidates if each.fits]
        finer = [each for each in fitting if each.level < level]
        if self.name == "smallest" and fitting:
            best = self._worthwhile(fitting)
            return self.slower * _seconds(best) if level <= max(best.level, FREE) else 0.0
        limit = float("inf")
        if level > FREE and finer:
            limit = self._worthwhile(finer).prediction.seconds_per_update / self.worth
        if self.name == "finest":  # a coarser plan only says what precision costs: it bounds no finer one
            same = [each for each in fitting if each.level is level or each.level <= level <= FREE]
        else:  # what is coarser is the choice where it is that many times as fast
            coarser = [_seconds(each) for each in fitting if each.level > max(level, FREE)]
            limit = min(limit, self.worth * min(coarser, default=float("inf")))
            same = [each for each in fitting if each.level is level or (each.level <= FREE and level <= FREE)]
        if level > FREE:  # what is not worth it bounds nothing: a little faster, and it would be
            same = [each for each in same if _seconds(each) <= limit]
        # beside the one that is taken of those that are alike: beside the fastest, the two tolerances would add up
        return min(limit, _seconds(fastest(same)) / ALIKE) if same else limit

    def _worthwhile(self, fitting: Sequence[Candidate]) -> Candidate:
        """Return the fastest down to `mixed`; of each level below only what is worth it beside what was taken so far."""
        return worthwhile(fitting, lambda each: each.level, fastest, _seconds, self.worth)


def worthwhile(
    plans: Sequence[Plan],
    level: Callable[[Plan], Fidelity],
    best: Callable[[Sequence[Plan]], Plan],
    cost: Callable[[Plan], float],
    worth: float,
) -> Plan:
    """Return the best plan down to `mixed`, or of a level below the best of those that cost `worth` times less than what was taken so far."""
    free = [each for each in plans if level(each) <= FREE]
    taken = best(free) if free else None
    for below in (each for each in Fidelity if each > FREE):
        group = [each for each in plans if level(each) is below]
        worthy = [each for each in group if taken is None or worth * cost(each) <= cost(taken)]
        taken = best(worthy) if worthy else taken
    assert taken is not None, "there is a plan"
    return taken


def least(plans: Sequence[Plan], cost: Callable[[Plan], float], order: Callable[[Plan], Any]) -> Plan:
    """Return the plan of the least cost; of those that are alike the first by `order`."""
    limit = ALIKE * min(map(cost, plans))
    return min((each for each in plans if cost(each) <= limit), key=order)


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the fastest; of those that are alike the most faithful, the simplest, and of those the one of the largest micro-batch."""
    return least(
        candidates, _seconds, lambda each: (each.level, len(each.added), -each.micro_batch, _seconds(each))
    )


def _seconds(candidate: Candidate) -> float:
    return candidate.prediction.seconds_per_update


def check_numbers(worth: float | None, slower: float | None, price: float | None) -> None:
    """Check what goes with a goal; None is not given.

    Raises:
        SettingError: a number is out of its range.
    """
    for setting, value in (("plan.worth", worth), ("plan.slower", slower)):
        if value is not None and not value >= 1:
            raise SettingError(setting, f"got {value:g}, expected at least 1", "Give how many times.")
    if price is not None and not price > 0:
        raise SettingError(
            "plan.price", f"got {price:g}, expected more than 0", "Give what an hour of one device costs."
        )


def check_goal(goal: str | None, price: float | None) -> None:
    """Check that there is such a goal, and a price where it is one of price.

    Raises:
        SettingError: neither.
    """
    if goal is not None and goal not in GOALS:
        raise SettingError("plan.goal", f"there is no goal '{goal}'", nearest(goal, GOALS))
    if goal == "cheapest" and price is None:
        raise SettingError(
            "plan.price", "is missing, and plan.goal is cheapest", "Give what an hour of one device costs."
        )
