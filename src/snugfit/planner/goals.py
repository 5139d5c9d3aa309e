"""Goals: what a plan is chosen for, and the numbers that say what a choice is worth."""

from __future__ import annotations

from typing import Literal, get_args

from snugfit.errors import SettingError, nearest

GoalName = Literal["fastest", "finest", "smallest", "cheapest"]
GOALS: tuple[GoalName, ...] = get_args(GoalName)
"""The least time of the whole run; the finest precision; the least memory within some times the least time; the least price."""

WORTH = 1.5
"""Times as fast that a plan below mixed precision has to be where something finer fits: it changes what is learned."""

SLOWER = 2.0
"""Times the least time that the smallest plan may take."""


def check_numbers(worth: float | None, slower: float | None, price: float | None) -> None:
    """Check what goes with a goal; None is not given.

    Raises:
        SettingError: a number is out of its range.
    """
    for setting, value in (("plan.worth", worth), ("plan.slower", slower)):
        if value is not None and not value >= 1:
            raise SettingError(f"{setting}: got {value:g}, expected at least 1. Give how many times.")
    if price is not None and not price > 0:
        raise SettingError(
            f"plan.price: got {price:g}, expected more than 0. Give what an hour of one device costs."
        )


def check_goal(goal: str | None, price: float | None) -> None:
    """Check that there is such a goal, and a price where it is one of price.

    Raises:
        SettingError: neither.
    """
    if goal is not None and goal not in GOALS:
        raise SettingError(f"plan.goal: there is no goal '{goal}'. {nearest(goal, GOALS)}")
    if goal == "cheapest" and price is None:
        raise SettingError(
            "plan.price: is missing, and plan.goal is cheapest. Give what an hour of one device costs."
        )
