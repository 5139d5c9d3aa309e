"""Adapters that a plan puts in get the learning rate of adapters, by the recipe's own, and the answer says so."""

from __future__ import annotations

from typing import Any

import pytest

from snugfit.core.entry import as_entry
from snugfit.core.technique import Technique
from snugfit.planner.choice.adapter_rate import adapter_notes, rate_of_adapters
from snugfit.planner.choice.rungs import labels_of_added, together
from snugfit.techniques import find


def adamw(rate: float) -> Technique:
    make: Any = find("adamw")
    technique: Technique = make(learning_rate=rate)
    return technique


def rate(techniques: tuple[Technique, ...]) -> float:
    (found,) = (each.learning_rate for each in techniques if "optimizer" in each.card.seams)  # type: ignore[attr-defined]
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize(
    ("before", "after"), [(1e-5, 1e-4), (3e-6, 3e-5), (5e-5, 2e-4), (2e-4, 2e-4), (1e-3, 1e-3)]
)
def test_adapters_get_ten_times_the_rate_to_a_limit_and_never_a_lower_one(
    before: float, after: float
) -> None:
    assert rate_of_adapters(before) == after
    assert rate(together((adamw(before),), (find("lora")(), find("bf16")()))) == after


def test_what_has_no_adapters_or_had_them_before_keeps_its_rate() -> None:
    own = (adamw(1e-5),)
    assert rate(together(own, (find("bf16")(),))) == 1e-5
    assert rate(together((*own, find("lora")()), (find("nf4")(),))) == 1e-5


def test_an_optimizer_of_few_bits_gets_the_rate_too_and_is_named_without_it() -> None:
    own = (adamw(1e-5),)
    plan = together(own, (find("adamw_8bit")(), find("lora")()))

    assert rate(plan) == 1e-4
    assert labels_of_added(plan, own) == ("adamw_8bit", "lora")
    assert labels_of_added(together(own, (find("lora")(),)), own) == ("lora",)


def test_the_rate_of_an_optimizer_whose_rates_are_of_another_size_stays() -> None:
    own = (find("sgd")(),)
    assert rate(together(own, (find("lora")(),))) == rate(own)


def test_the_answer_says_what_is_put_in_and_what_becomes_of_the_rate() -> None:
    own = (adamw(1e-5),)
    entries = [as_entry(each) for each in together(own, (find("lora")(),))]
    settings, learning = adapter_notes(own, entries)

    assert settings.startswith(
        "lora is put in (rank 8, alpha 16, beside all linear layers), which changes what is learned."
    )
    assert learning.startswith(
        "The learning rate is 0.0001 in place of 1e-05: adapters get ten times the recipe's"
    )
    (_, stays) = adapter_notes((adamw(1e-3),), entries)
    assert stays.startswith("The learning rate stays 0.001: ")
    assert adapter_notes(own, [as_entry(each) for each in own]) == ()
    assert adapter_notes((*own, find("lora")()), entries) == ()
