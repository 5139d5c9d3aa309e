"""The cheapest number of devices: prices are compared, and what each number comes to is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from snugfit.core.job import Plan
from snugfit.errors import SettingError
from snugfit.planner.answers.answer import Answer, Choice, Prediction
from snugfit.planner.choice import channel
from snugfit.planner.choice.candidate import Budget
from snugfit.planner.choice.cheapest import counts, make_cheapest
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.plan import Request, make_plan
from snugfit.planner.sharing import make_shared_plan
from snugfit.planner.target import Target
from snugfit.run.plans import planning
from snugfit.system.malloc import resident_bytes
from tests.unit.planner.test_sharing import FAST, SLOW, WEIGHTS, machine, subject

HOUR = 3600.0


def answer(
    devices: int, hours: float | None, level: str = "mixed", fits: bool = True, seconds: float = 1.0
) -> Answer:
    found = Prediction(
        1, {}, {}, 2**30, 0, seconds, None if hours is None else hours * HOUR, None, 1.0, 1, 0.5, {}
    )
    return Answer(
        fits=fits,
        device={"name": "some"},
        budget_bytes=2**31,
        prediction=found,
        choice=Choice(1, level, (), devices=devices, fidelity=level),
        why=("As it is.",),
    )


def cheapest(plans: Mapping[int, Answer | SettingError], worth: float = 1.5, price: float = 2.0) -> Answer:
    def make(nodes: int, devices: int) -> Answer:
        found = plans[nodes * devices]
        if isinstance(found, SettingError):
            raise found
        return found

    return make_cheapest(make, [(1, each) for each in plans], price, worth)


def test_the_least_price_wins_over_the_least_time() -> None:
    found = cheapest({1: answer(1, 9.0), 2: answer(2, 4.0), 4: answer(4, 2.6)})

    assert found.choice.devices == 2
    assert found.why[0] == "Cheapest on 2 devices: 16.00 for the run, at 2 an hour of each."
    assert found.why[1:4] == (
        "On 1 device: 1.00 s an update, 9h 00m for the run, 18.00, at mixed.",
        "On 2 devices: 1.00 s an update, 4h 00m for the run, 16.00, at mixed.",
        "On 4 devices: 1.00 s an update, 2h 36m for the run, 20.80, at mixed.",
    )


def test_of_prices_that_are_alike_the_more_faithful_plan_wins_then_the_fewer_devices() -> None:
    assert cheapest({1: answer(1, 8.0), 2: answer(2, 3.9)}).choice.devices == 1
    assert cheapest({1: answer(1, 8.0), 2: answer(2, 4.1, "full")}).choice.devices == 2
    assert cheapest({1: answer(1, 8.0), 2: answer(2, 3.0)}).choice.devices == 2


@pytest.mark.parametrize(("hours", "devices"), [(5.0, 2), (3.0, 1)])
def test_a_plan_below_mixed_has_to_be_worth_it_in_price(hours: float, devices: int) -> None:
    """Finer on two devices, at 6; in few bits on one, at 5 or at 3."""
    found = cheapest({1: answer(1, hours, "quantized"), 2: answer(2, 3.0)})
    assert found.choice.devices == devices


def test_what_does_not_fit_or_cannot_be_planned_is_said_and_not_chosen() -> None:
    plans = {
        1: answer(1, 1.0, fits=False),
        2: answer(2, 4.0),
        4: SettingError.from_text("devices: too many."),
    }
    found = cheapest(plans)

    assert found.choice.devices == 2
    assert found.why[1] == "On 1 device: nothing fits, the smallest plan takes 1 GiB of each."
    assert found.why[3] == "On 4 devices: devices: too many."


def test_where_nothing_fits_on_any_number_the_answer_says_so() -> None:
    found = cheapest({1: answer(1, 1.0, fits=False), 2: answer(2, 1.0, fits=False)})

    assert not found.fits and found.choice.devices == 2
    assert [each.startswith("On ") for each in found.why] == [False, True, True]


def test_where_no_number_can_be_planned_its_error_is_raised() -> None:
    with pytest.raises(SettingError, match="no way"):
        cheapest({1: SettingError.from_text("model: no way."), 2: SettingError.from_text("model: no way.")})


def test_a_run_of_unknown_length_is_compared_by_a_thousand_updates() -> None:
    found = cheapest({1: answer(1, None, seconds=3.6), 2: answer(2, None, seconds=1.5)})
    assert found.why[0] == "Cheapest on 2 devices: 1.67 for 1,000 updates, at 2 an hour of each."


def test_an_interrupt_leaves_the_numbers_that_were_not_planned_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "interrupted", lambda: True)
    found = cheapest({1: answer(1, 9.0), 2: answer(2, 1.0)})
    assert found.choice.devices == 1


def test_only_a_search_for_the_cheapest_that_may_take_fewer_devices_plans_for_several_numbers() -> None:
    wish = {"devices": 4, "price": 1.0}
    assert Target(goal="cheapest", **wish).counts() == [(1, 1), (1, 2), (1, 4)]
    assert Target(goal="cheapest", strategy="fsdp", **wish).counts() == counts(4, 1, skip_one=True)
    assert Target(goal="cheapest", fewer=False, **wish).counts() == [(1, 4)]
    assert Target(goal="fastest", **wish).counts() == [(1, 4)]


def test_each_number_is_planned_with_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, bool]] = []

    def one(subject: Any, machine: Any, request: Request, about: Any) -> Answer:
        asked.append((1, request.fewer))
        return answer(1, 9.0)

    def several(
        subject: Any, machine: Any, request: Request, cluster: Cluster, about: Any, strategy: Any
    ) -> Answer:
        asked.append((cluster.world, request.fewer))
        return answer(cluster.world, 9.0 / cluster.world - 1)

    monkeypatch.setattr(planning, "make_plan", one)
    monkeypatch.setattr(planning, "make_shared_plan", several)
    target = Target(device="cpu", memory=2**30, devices=4, goal="cheapest", price=1.0)
    found = planning._planned(subject(), machine(), Plan(), target, {})

    assert asked == [(1, False), (2, False), (4, False)]
    assert found.choice.devices == 4


def test_the_numbers_share_the_seconds_that_the_search_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def one(subject: Any, machine: Any, request: Request, *more: Any) -> Answer:
        given.append(request.seconds or 0)
        return answer(1, 9.0)

    monkeypatch.setattr(planning, "make_plan", one)
    monkeypatch.setattr(planning, "make_shared_plan", one)
    target = Target(device="cpu", memory=2**30, devices=4, goal="cheapest", price=1.0, seconds=300.0)
    planning._planned(subject(), machine(), Plan(), target, {})

    assert given[0] == pytest.approx(100, abs=5)
    assert given[1:] == pytest.approx([150, 300], abs=10), "what one leaves the next ones have"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "link", "devices"),
    [(2**40, FAST, 1), (2**40, SLOW, 1), (resident_bytes(4 * WEIGHTS, 0), FAST, 2)],
    ids=["alike", "dearer", "the only one that fits"],
)
def test_a_small_model_is_put_on_two_devices_where_one_has_no_room(
    memory: int, link: Any, devices: int
) -> None:
    """One device computes twice as long, and costs half as much; a window has to be in one micro-batch."""
    request = Request(Plan(micro_batch=8), Budget(memory, margin=0.0), search=False, fewer=False)

    def make(nodes: int, count: int) -> Answer:
        if count == 1:
            return make_plan(subject(), machine(memory), request)
        return make_shared_plan(subject(), machine(memory), request, Cluster(count, 1, link, link))

    found = make_cheapest(make, counts(2, 1), 2.0, 1.5)

    assert found.fits and found.choice.devices == devices
