"""Estimates of plans from those of their parts, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from snugfit.planner.answer import Prediction
from snugfit.planner.estimate import Estimator, saves, smallest
from snugfit.techniques import find

RECOMPUTE, CHUNKED = find("recompute")(), find("chunked_loss")()
LORA, NARROW = find("lora")(), find("pure_bf16")()
OVERHEAD = 50


def predicted(phases: dict[str, dict[str, int]], seconds: float = 1.0, host: int = 0) -> Prediction:
    peak = max((sum(each.values()) for each in phases.values()), default=0)
    return Prediction(
        peak, {}, {}, peak + OVERHEAD, host, seconds, None, None, 1.0, 1, 0.5, {}, peak_by_phase=phases
    )


def test_shares_that_rungs_leave_are_multiplied_and_the_highest_phase_counts() -> None:
    plain = predicted(
        {"forward": {"weights": 100, "activations": 400}, "loss": {"weights": 100, "temporaries": 600}}, 2.0
    )
    known = Estimator(16)
    known.learn_base(16, plain)
    half = {"forward": {"weights": 100, "activations": 200}, "loss": {"weights": 100, "temporaries": 600}}
    known.learn_rung(RECOMPUTE, predicted(half, 3.0), plain)
    tenth = {"forward": {"weights": 50, "activations": 400}, "loss": {"weights": 100, "temporaries": 60}}
    known.learn_rung(CHUNKED, predicted(tenth, 2.2), plain)
    found = known.estimate((RECOMPUTE, CHUNKED), 16)
    # forward 50 + 200, loss 100 + 60
    assert found.reserved_bytes == pytest.approx(250 + OVERHEAD)
    assert found.seconds == pytest.approx(2.0 * 1.5 * 1.1)


def test_bytes_where_there_were_none_are_added() -> None:
    plain = predicted({"optimizer": {"weights": 100}})
    known = Estimator(16)
    known.learn_base(16, plain)
    known.learn_rung(CHUNKED, predicted({"optimizer": {"weights": 50, "temporaries": 20}}), plain)
    assert known.estimate((CHUNKED,), 16).reserved_bytes == pytest.approx(70 + OVERHEAD)


def test_between_two_sizes_bytes_follow_the_size_and_time_the_number_of_micro_batches() -> None:
    known = Estimator(16)
    known.learn_base(1, predicted({"forward": {"activations": 10}}, 1.0 + 16 * 0.1))
    known.learn_base(8, predicted({"forward": {"activations": 80}}, 1.0 + 2 * 0.1))
    known.learn_base(
        16, predicted({"forward": {"activations": 9999}}, 9.0)
    )  # of one pass, which has no say below it
    found = known.estimate((), 4)
    assert found.reserved_bytes == pytest.approx(40 + OVERHEAD)
    assert found.seconds == pytest.approx(1.0 + 4 * 0.1)


def test_what_a_rung_costs_the_host_grows_with_the_micro_batches_and_what_it_computes_does_not() -> None:
    known = Estimator(16)
    for size in (1, 16):  # an update computes for 2 s, and each micro-batch takes 0.1 s of the host
        host = 0.1 * 16 / size
        known.learn_base(size, replace(predicted({}, 2.0 + host), host_seconds=host))
    again = replace(
        predicted({}, 3.0 + 5 * 1.6), host_seconds=5 * 1.6
    )  # half as much more to compute, five times the host's
    known.learn_rung(RECOMPUTE, again, replace(predicted({}, 2.0 + 1.6), host_seconds=1.6))
    assert known.estimate((RECOMPUTE,), 1).seconds == pytest.approx(3.0 + 8.0)
    assert known.estimate((RECOMPUTE,), 16).seconds == pytest.approx(3.0 + 0.5)


def test_a_prediction_mends_the_estimates_of_plans_with_more_rungs() -> None:
    plain = predicted({"forward": {"activations": 950}}, 1.0)
    known = Estimator(16)
    known.learn_base(16, plain)
    for rung in (RECOMPUTE, CHUNKED):
        known.learn_rung(rung, predicted({"forward": {"activations": 475}}, 1.0), plain)
    before = known.estimate((RECOMPUTE, CHUNKED), 16)
    known.learn_plan((RECOMPUTE,), 16, predicted({"forward": {"activations": 1000}}, 2.0))
    after = known.estimate((RECOMPUTE, CHUNKED), 16)
    assert after.reserved_bytes == pytest.approx(before.reserved_bytes * 1050 / 525)
    assert after.seconds == pytest.approx(before.seconds * 2)


def test_a_rung_saves_that_lowers_a_phase_which_would_not_fit_though_another_one_is_the_highest() -> None:
    without = predicted(
        {"setup": {"weights": 1000}, "loss": {"temporaries": 900}, "optimizer": {"weights": 100}}
    )
    lower = predicted(
        {"setup": {"weights": 1000}, "loss": {"temporaries": 90}, "optimizer": {"weights": 100}}
    )
    elsewhere = predicted(
        {"setup": {"weights": 1000}, "loss": {"temporaries": 900}, "optimizer": {"weights": 10}}
    )
    assert saves(lower, without, usable=500)
    assert not saves(elsewhere, without, usable=500)
    assert not saves(lower, without, usable=990), "the loss fits as it is"


def test_the_smallest_of_alike_plans_has_the_fewest_rungs() -> None:
    known = Estimator(16)
    plain = predicted({"forward": {"activations": 950}})
    known.learn_base(16, plain)
    known.learn_rung(CHUNKED, plain, plain)
    both = [known.estimate((CHUNKED,), 16), known.estimate((), 16)]
    found = smallest(both)
    assert found is not None and found.added == ()
    assert smallest([]) is None


def test_a_rung_by_which_something_happens_in_another_phase_does_not_add_what_is_there_anyway() -> None:
    """Adapters are merged when they are saved, which is a phase of its own; weights in bf16 are half as large there too."""
    plain = predicted({"forward": {"weights": 1000}, "optimizer": {"weights": 1000}})
    known = Estimator(16)
    known.learn_base(16, plain)
    known.learn_rung(
        LORA,
        predicted({"forward": {"weights": 1000}, "optimizer": {"weights": 1000}, "save": {"weights": 1000}}),
        plain,
    )
    known.learn_rung(NARROW, predicted({"forward": {"weights": 500}, "optimizer": {"weights": 500}}), plain)
    assert known.estimate((LORA, NARROW), 16).reserved_bytes == pytest.approx(500 + OVERHEAD)


def test_where_weights_come_in_their_format_what_is_made_until_then_is_not_estimated() -> None:
    plain = predicted({"setup": {"weights": 1000}, "forward": {"weights": 1000}})
    quantised = predicted({"setup": {"weights": 250, "temporaries": 1000}, "forward": {"weights": 250}})
    whole, so = Estimator(16), Estimator(16, lambda added: NARROW in added)
    for known in (whole, so):
        known.learn_base(16, plain)
        known.learn_rung(NARROW, quantised, plain)
    assert whole.estimate((NARROW,), 16).reserved_bytes == pytest.approx(1250 + OVERHEAD)
    assert so.estimate((NARROW,), 16).reserved_bytes == pytest.approx(250 + OVERHEAD)


def test_an_allocator_takes_a_share_of_what_is_allocated_beside_what_is_fixed() -> None:
    plain = predicted({"forward": {"activations": 1000}})
    known = Estimator(16, fixed_bytes=OVERHEAD - 30)  # of each byte that is allocated it takes 1.03
    known.learn_base(16, plain)
    known.learn_rung(RECOMPUTE, predicted({"forward": {"activations": 100}}), plain)
    assert known.estimate((RECOMPUTE,), 16).reserved_bytes == pytest.approx(103 + OVERHEAD - 30)


def test_a_prediction_mends_the_estimates_of_plans_with_fewer_rungs_too() -> None:
    plain = predicted({"forward": {"activations": 950}}, 1.0)
    known = Estimator(16)
    known.learn_base(16, plain)
    for rung in (RECOMPUTE, CHUNKED, LORA, NARROW):
        known.learn_rung(rung, predicted({"forward": {"activations": 855}}, 1.0), plain)
        known.learn_plan((rung,), 16, predicted({"forward": {"activations": 855}}, 1.0))
    guess = known.estimate((RECOMPUTE, CHUNKED, LORA, NARROW), 16).reserved_bytes
    half = predicted({"forward": {"activations": round(guess / 2 - OVERHEAD)}}, 1.0)
    before = known.estimate((RECOMPUTE, CHUNKED, LORA), 16).reserved_bytes
    known.learn_plan((RECOMPUTE, CHUNKED, LORA, NARROW), 16, half)
    assert known.estimate((RECOMPUTE, CHUNKED, LORA), 16).reserved_bytes == pytest.approx(
        before / 2, rel=0.01
    )
    assert known.estimate((RECOMPUTE,), 16).reserved_bytes == pytest.approx(855 + OVERHEAD), "known itself"
