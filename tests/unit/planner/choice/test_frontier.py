"""What each level of fidelity offers: searched, it is what looking at all plans finds; else it is bounded, and said to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from snugfit.core.technique import Fidelity
from snugfit.planner.answers.answer import FrontierPoint, Prediction
from snugfit.planner.choice.frontier import bounds, explore, frontier
from tests.unit.planner.choice.test_search import MB, Laws, fastest, searched


class Stated(Laws):
    """Half of what the weights take is the optimizer's."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law(names, size)
        half = found.peak_by_kind["weights"] // 2
        return replace(found, peak_by_kind={"weights": half, "optimizer": half})


QUICK, SMALL = "fastest", "smallest"


def by_level(points: tuple[FrontierPoint, ...]) -> dict[tuple[str, str], FrontierPoint]:
    return {(each.level, each.what): each for each in points}


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [4000, 420])
def test_each_level_is_searched_for_its_fastest_and_its_smallest_plan_whatever_is_allowed(
    megabytes: int,
) -> None:
    laws = Stated()
    search = searched(laws, megabytes, Fidelity.MIXED)
    search.best()
    tried = len(search.tried)
    points, _, complete = explore(search)
    found = by_level(points)

    assert complete
    for level in Fidelity:
        best = fastest(laws, megabytes, level, Fidelity.QUANTIZED)
        every = list(laws.every(level, Fidelity.QUANTIZED))
        assert found[level.label, QUICK].seconds_per_update <= 1.05 * best
        smallest = found.get((level.label, SMALL), found[level.label, QUICK])
        assert smallest.fits
        # a technique that saves less than a twentieth is not looked at
        assert smallest.reserved_bytes <= 1.05 * min(each.reserved_bytes for each in every)
    assert len(search.tried) == tried, "what the choice was among stays as it is"


def test_of_a_level_at_which_nothing_fits_the_smallest_plan_is_told_with_that() -> None:
    search = searched(Laws(), 300, Fidelity.MIXED)
    search.best()
    found = by_level(explore(search)[0])

    assert ("full", QUICK) not in found
    full = found["full", SMALL]
    assert not full.fits and full.reserved_bytes > 300 * MB
    assert found["quantized", QUICK].fits


def test_a_level_that_was_not_searched_is_bounded_by_its_arithmetic_and_never_above_what_it_can_do() -> None:
    laws = Laws()
    search = searched(laws, 4000, Fidelity.MIXED)
    search.best()
    found = {each.level: each for each in bounds(search)}

    assert set(found) == {"compact", "adapters", "quantized"}
    for level in (Fidelity.COMPACT, Fidelity.ADAPTERS, Fidelity.QUANTIZED):
        least = found[level.label].seconds_per_update
        assert 0 < least <= fastest(laws, math.inf, level, Fidelity.QUANTIZED)
    assert {each.level for each in frontier(search)} <= {"full", "mixed"}


def test_an_interrupted_search_of_the_levels_says_that_not_all_was_looked_at() -> None:
    search = searched(Laws(), 4000, Fidelity.MIXED)
    search.best()
    search.deadline = 0.0
    points, _, complete = explore(search)

    assert not complete
    assert {each.level for each in points} == {"full", "mixed"}
