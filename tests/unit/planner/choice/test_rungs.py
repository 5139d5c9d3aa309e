"""What may be added to a run, and what goes together."""

from __future__ import annotations

import pytest

from snugfit.core.technique import Family, Fidelity
from snugfit.errors import PlanConflict
from snugfit.planner.choice.rungs import coarser, label, labels_of_added, level_of, placements, together
from snugfit.planner.devices.hardware import find_device
from snugfit.techniques import find

ADAMW, RECOMPUTE, OFFLOAD = find("adamw")(), find("recompute")(), find("optimizer_offload")()


def test_placements_leave_the_numbers_as_they_are() -> None:
    found = list(placements(find_device("t4")))
    assert RECOMPUTE in found and OFFLOAD in found
    assert {each.card.family for each in found} == {Family.PLACEMENT}
    assert level_of(found) is Fidelity.FULL


def test_a_level_has_what_the_device_can_compute_and_nothing_of_other_levels() -> None:
    old, new = (
        {each.card.name for each in coarser(Fidelity.MIXED, find_device(name))} for name in ("t4", "rtx4090")
    )
    assert "bf16" in new and "bf16" not in old, "Turing has no bf16"
    assert "fp16" in old and "fp16" not in new, "bf16 takes as much and needs no scale"
    assert "adamw_8bit" not in new


def test_a_technique_takes_the_place_of_the_one_it_replaces_with_its_settings() -> None:
    (found,) = together([find("adamw")(learning_rate=0.5)], [find("adamw_8bit")()])
    assert found == find("adamw_8bit")(learning_rate=0.5)


def test_what_excludes_each_other_is_not_put_together() -> None:
    with pytest.raises(PlanConflict):  # masters, or none
        together([ADAMW], [find("master_weights")(), find("pure_bf16")()])


def test_masters_the_optimizer_and_gradients_leave_the_device_together_as_rungs_of_mixed_precision() -> None:
    leaving = [find(name).rungs()[0] for name in ("master_weights", "optimizer_offload", "gradient_offload")]
    found = together([ADAMW], leaving)
    assert found == (ADAMW, *leaving) and level_of(found) is Fidelity.MIXED


def test_a_rung_is_told_with_the_settings_that_are_its_own() -> None:
    kept = find("recompute")(keep=("attention",))
    assert label(RECOMPUTE) == "recompute" and label(kept) == "recompute(keep=('attention',))"
    assert labels_of_added([ADAMW, kept], [ADAMW]) == ("recompute(keep=('attention',))",)


def test_states_in_pages_are_a_rung_of_cuda() -> None:
    paged = "adamw_8bit(paged=True)"
    assert paged in map(label, coarser(Fidelity.COMPACT, find_device("rtx4090")))
    assert paged not in map(label, coarser(Fidelity.COMPACT, find_device("cpu")))


def test_the_settings_that_a_technique_takes_over_from_the_one_it_replaces_are_not_told() -> None:
    own, few_bits = find("adamw")(learning_rate=1e-4, weight_decay=0.5), find("adamw_8bit")  # type: ignore[call-arg]
    assert labels_of_added(together([own], [few_bits()]), [own]) == ("adamw_8bit",)
    small = few_bits(min_size=64)  # type: ignore[call-arg]
    assert labels_of_added(together([own], [small]), [own]) == ("adamw_8bit(min_size=64)",)
