"""What a plan is chosen for reaches the search, from a recipe, the command line and Python; impossible wishes are refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import snugfit as sf
from snugfit.cli.plan import Asked
from snugfit.errors import SettingError
from snugfit.planner.plan import Request
from snugfit.planner.target import Target
from snugfit.run.plans import planning
from tests.unit.planner.asked import Stopped, recipe, request_of

DEFAULTS = {"goal": "fastest", "worth": 1.5, "slower": 2.0, "price": None}


def said(requests: list[Request]) -> dict[str, Any]:
    return {name: getattr(requests[-1], name) for name in DEFAULTS}


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"goal": "finest"},
        {"worth": 3.0},
        {"goal": "smallest", "slower": 1.0},
        {"goal": "cheapest", "price": 2.5},
    ],
)
def test_the_goal_of_a_recipe_is_the_searchs(
    tmp_path: Path, requests: list[Request], plan: dict[str, Any]
) -> None:
    target = Target(memory=2**34)

    request_of(recipe(tmp_path, **plan), target, requests)
    assert said(requests) == {**DEFAULTS, **plan}


def test_the_command_line_wins_over_the_recipe(tmp_path: Path, requests: list[Request]) -> None:
    asked = Asked(goal="smallest", worth=1.0, seconds=7.0, memory="16GiB")
    request_of(recipe(tmp_path, goal="finest", worth=4.0), asked.target(1), requests)

    assert said(requests) == {**DEFAULTS, "goal": "smallest", "worth": 1.0}
    assert requests[-1].seconds == 7.0


def test_the_goal_of_a_call_is_the_searchs(requests: list[Request]) -> None:
    wishes: Mapping[str, Any] = {"goal": "cheapest", "worth": 2.0, "slower": 3.0, "price": 1.25}
    with pytest.raises(Stopped):
        sf.plan(torch.nn.Linear(2, 2), (torch.zeros(4, 2), torch.zeros(4).long()), seconds=9.0, **wishes)

    assert said(requests) == wishes
    assert requests[-1].seconds == 9.0


def test_the_hosts_memory_bounds_the_search_and_the_answer_names_it(
    tmp_path: Path, requests: list[Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "host_memory", lambda target, machine: (7, ("seven bytes",)))
    machines: list[Any] = []

    def stop(subject: Any, machine: Any, request: Request, *rest: Any) -> None:
        machines.append(machine)
        requests.append(request)
        raise Stopped

    monkeypatch.setattr(planning, "make_plan", stop)
    request_of(recipe(tmp_path), Target(memory=2**34), requests)

    assert requests[-1].budget.host_bytes == 7
    assert machines[-1].notes == ("seven bytes",)


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        (
            {"goal": "quickest"},
            r"plan\.goal: must be fastest, finest, smallest or cheapest, found 'quickest'",
        ),
        ({"worth": 0.9}, r"plan\.worth: must be a number of at least 1, found 0\.9\. The default is 1\.5"),
        ({"slower": 0.5}, r"plan\.slower: must be a number of at least 1, found 0\.5"),
        ({"price": 0.0}, r"plan\.price: must be a positive number or null, found 0"),
        ({"goal": "cheapest"}, r"plan\.price: is missing, and plan\.goal is cheapest"),
    ],
)
def test_a_recipe_with_an_impossible_wish_is_refused(
    tmp_path: Path, plan: dict[str, Any], error: str
) -> None:
    with pytest.raises(SettingError, match=error):
        recipe(tmp_path, **plan)


@pytest.mark.parametrize(
    ("wish", "error"),
    [
        ({"goal": "fastes"}, r"^goal: there is no goal 'fastes'. Did you mean 'fastest'"),
        ({"goal": "cheapest"}, r"^price: is missing"),
        ({"worth": 0.5}, r"^worth: got 0\.5, expected at least 1"),
        ({"slower": float("nan")}, r"^slower: got nan, expected at least 1"),
        ({"price": -1.0}, r"^price: got -1, expected more than 0"),
        ({"seconds": 0.0}, r"seconds: got 0, expected more than 0"),
    ],
)
def test_a_call_with_an_impossible_wish_is_refused_before_a_process_is_started(
    wish: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(planning, "Worker")
    with pytest.raises(SettingError, match=error):
        sf.plan(torch.nn.Linear(2, 2), (torch.zeros(4, 2), torch.zeros(4).long()), **wish)


def test_what_a_plan_is_chosen_for_is_not_what_is_learned(tmp_path: Path) -> None:
    plain = recipe(tmp_path).hash()
    assert recipe(tmp_path, goal="cheapest", price=2.0, worth=4.0, slower=3.0).hash() == plain
