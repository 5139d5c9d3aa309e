"""What limits an update, on updates whose times are made up so that the answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snugfit.tools.profile.limits import Measured, Occasional, advise, culprits, limit_of, limits, verdict
from snugfit.tools.profile.operators import Operator, Work

LAUNCH = 1e-5

PRODUCT = Operator(
    "aten::mm",
    0.06,
    3,
    "backward",
    "body.1",
    0.7,
    Work(3, 6_000, 90, compute_seconds=0.05, memory_seconds=0.01),
)
COPY = Operator("aten::gelu", 0.02, 2, "forward", "body.2", 1.0, Work(2, 0, 800, 0.0, memory_seconds=0.015))
VIEWS = Operator("aten::view", 0.005, 400, "forward", "", 1.0)


def measured(seconds: float = 0.1, data: float = 0.0, **changes: object) -> Measured:
    found = Measured(seconds, {"data": data, "forward": seconds - data}, (PRODUCT, COPY, VIEWS), LAUNCH)
    return replace(found, **changes)


def test_each_second_of_an_update_has_one_limit() -> None:
    found = measured(seconds=0.1, data=0.01)
    # 5 ms are in no operator: what the host takes to start them
    assert limits(found) == pytest.approx(
        {"data": 0.01, "launch": 0.005 + 0.005, "memory": 0.02, "compute": 0.06}
    )
    assert sum(limits(found).values()) == pytest.approx(found.seconds)


@pytest.mark.parametrize(
    ("operator", "limit"),
    [(PRODUCT, "compute"), (COPY, "memory"), (VIEWS, "launch")],
    ids=lambda each: str(each)[:20],
)
def test_an_operator_is_limited_by_the_longest_of_its_bounds(operator: Operator, limit: str) -> None:
    assert limit_of(operator, LAUNCH) == limit


def test_a_product_that_is_over_before_it_could_be_started_is_limited_by_launching() -> None:
    tiny = replace(PRODUCT, calls=10_000)
    assert limit_of(tiny, LAUNCH) == "launch"


@pytest.mark.parametrize(
    ("found", "limit", "says"),
    [
        (measured(seconds=0.3, data=0.2), "data", "0.20 s of 0.30 s, 67%"),
        (measured(seconds=0.3), "launch", "0.22 s of 0.30 s, 73%"),
        (measured(operators=(replace(COPY, seconds=0.07),)), "memory", "70 ms of 0.10 s, 70%"),
        (measured(), "compute", "60 ms of 0.10 s, 60%"),
    ],
    ids=["data", "launch", "memory", "compute"],
)
def test_the_verdict_names_what_takes_most(found: Measured, limit: str, says: str) -> None:
    name, words = verdict(found)
    assert name == limit
    assert says in words


def test_the_five_culprits_are_the_longest_with_their_share_of_the_run() -> None:
    found = measured(seconds=0.15, data=0.05, occasional={"evaluation": Occasional(5.0, every=100)})
    named = culprits(found)
    # an evaluation of 5 s each 100 updates is 50 ms an update, so the run takes 200 ms an update
    assert [(each.name, each.share) for each in named] == [
        ("aten::mm", pytest.approx(0.06 / 0.2)),
        ("data", pytest.approx(0.05 / 0.2)),
        ("evaluation", pytest.approx(0.05 / 0.2)),
        ("aten::gelu", pytest.approx(0.02 / 0.2)),
        ("between operators", pytest.approx(0.015 / 0.2)),
    ]
    assert named[0].module == "body.1" and named[0].phase == "backward" and named[0].limit == "compute"


def gains(found: Measured, **predicted: float) -> dict[str, tuple[float, str]]:
    return {
        each.change.partition(":")[0].partition(",")[0]: (each.gain, each.by)
        for each in advise(found, predicted.get)
    }


def test_data_of_two_fifths_is_hidden_by_a_worker_for_five_thirds_of_the_speed() -> None:
    found = measured(seconds=0.1, data=0.04, operators=(replace(PRODUCT, seconds=0.06),), cores=4)
    gain, by = gains(found)["plan.num_workers=1"]
    assert gain == pytest.approx(0.1 / 0.06) and by.startswith("arithmetic: 40%")


def test_workers_are_no_more_than_the_cores_and_gain_no_more_than_they_load() -> None:
    # windows take nine times as long to load as to train on; two workers make one each 45 ms
    found = measured(seconds=0.1, data=0.09, operators=(), cores=3)
    assert gains(found)["plan.num_workers=2"][0] == pytest.approx(0.1 / 0.045)


def test_loading_that_waits_for_a_disk_takes_more_workers_than_cores() -> None:
    found = measured(seconds=0.1, data=0.09, operators=(), cores=3, busy=0.25)
    # eight could be served, nine would make the windows in time, of which a step takes a ninth of what one takes to load
    assert gains(found)["plan.num_workers=8"][0] == pytest.approx(0.1 / (0.09 / 8))


def test_where_the_workers_have_all_cores_the_examples_are_to_be_made_cheaper() -> None:
    found = measured(seconds=0.1, data=0.05, operators=(), num_workers=3, cores=4)
    assert gains(found)["Make examples cheaper to load"][0] == pytest.approx(2.0)


def test_launches_of_four_micro_batches_are_four_times_those_of_one() -> None:
    found = measured(seconds=0.1, operators=(), micro_batches=4)  # nothing but launches
    assert gains(found)["A larger plan.micro_batch"] == (
        pytest.approx(4.0),
        "arithmetic: launches are 100% and would be as many fewer",
    )
    assert gains(found, micro_batch=1.5)["A larger plan.micro_batch"] == (1.5, "the planner")


def test_a_technique_that_is_used_is_not_advised() -> None:
    found = measured(seconds=0.3)
    assert any("compile" in name for name in gains(found))
    assert not any("compile" in name for name in gains(replace(found, techniques=frozenset({"compile"}))))


def test_bf16_gains_what_the_planner_says_and_is_left_out_where_that_is_nothing() -> None:
    assert gains(measured(), bf16=1.8)["plan.numerics=bf16"] == (1.8, "the planner")
    assert "plan.numerics=bf16" not in gains(measured(), bf16=0.7)
    # 60 ms of products 16 times as fast and 20 ms of traffic halved
    assert gains(measured(faster=16.0))["plan.numerics=bf16"][0] == pytest.approx(
        0.1 / (0.1 - 0.01 - 0.06 * 15 / 16)
    )


def test_padding_gains_its_share_of_the_passes() -> None:
    found = measured(padding=0.5, phases={"forward": 0.02, "backward": 0.06, "optimizer": 0.02})
    assert gains(found)["The technique length_grouping"][0] == pytest.approx(0.1 / 0.06)


def test_an_evaluation_that_is_half_of_the_run_is_to_be_rarer() -> None:
    found = measured(seconds=0.1, occasional={"evaluation": Occasional(1.0, every=10)})
    assert gains(found)["evaluate.every of 20 updates in place of 10."][0] == pytest.approx(0.2 / 0.15)


def test_advice_comes_in_the_order_of_its_gain() -> None:
    found = advise(measured(seconds=0.5, data=0.2, micro_batches=8, cores=8))
    assert [each.gain for each in found] == sorted((each.gain for each in found), reverse=True)
    assert len(found) > 2
