"""How one set of rungs compares with another, by their settings and cards alone."""

from __future__ import annotations

from snugfit.planner.choice.rung_sets import stands_in, takes_longer
from snugfit.planner.choice.rungs import together
from snugfit.techniques import find

ADAMW = find("adamw")(learning_rate=0.5)  # type: ignore[call-arg]
PLAIN, PAGED = find("adamw_8bit").rungs()
SPARSE, RECOMPUTE = find("recompute").rungs()
CHUNKED = find("chunked_loss")()


def test_a_rung_is_the_one_that_took_the_settings_of_what_it_stands_in_for_and_has_its_own() -> None:
    (plain,), (paged,) = together([ADAMW], [PLAIN]), together([ADAMW], [PAGED])
    assert plain != PLAIN and paged != PAGED, "the rate is that of AdamW"
    assert stands_in(PLAIN, plain) and stands_in(PAGED, paged)
    assert not stands_in(PAGED, plain) and not stands_in(PLAIN, paged)
    assert not stands_in(RECOMPUTE, RECOMPUTE), "which stands in for nothing"


def test_placements_and_later_rungs_of_a_technique_take_time() -> None:
    assert takes_longer((ADAMW,), (ADAMW, RECOMPUTE))
    assert takes_longer((ADAMW, SPARSE), (ADAMW, SPARSE, CHUNKED))
    assert takes_longer(together([ADAMW], [PLAIN]), together([ADAMW], [PAGED, CHUNKED]))


def test_other_formats_fewer_placements_and_earlier_rungs_may_take_less() -> None:
    assert not takes_longer((ADAMW, RECOMPUTE), (ADAMW,))
    assert not takes_longer((ADAMW, RECOMPUTE), (ADAMW, SPARSE))
    assert not takes_longer((ADAMW, SPARSE), (ADAMW, RECOMPUTE)), "to keep takes time too"
    assert not takes_longer((ADAMW,), together([ADAMW], [PLAIN]))
    assert not takes_longer((ADAMW,), (ADAMW, find("pure_bf16")()))
    assert not takes_longer(together([ADAMW], [PAGED]), together([ADAMW], [PLAIN]))
    assert not takes_longer((ADAMW, SPARSE, CHUNKED), (ADAMW, RECOMPUTE))


def test_what_is_placed_beside_activations_elsewhere_may_save_the_time_of_copies() -> None:
    away = find("activation_offload")()
    assert not takes_longer((ADAMW, away), (ADAMW, away, RECOMPUTE))
    assert not takes_longer((ADAMW, away), (ADAMW, away, CHUNKED))
    assert takes_longer((ADAMW, away), (ADAMW, away)), "the same takes the same"
