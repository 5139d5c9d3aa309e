"""The search against a machine of known laws, on which all plans can be looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from snugfit.core.job import Plan
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.planner.answer import Prediction
from snugfit.planner.candidate import Budget, Candidate
from snugfit.planner.rungs import coarser, level_of, placements, together, told
from snugfit.planner.search import Search
from snugfit.planner.told import alternatives, rejected, why, why_not
from snugfit.techniques import find

ROWS = 16
SIZES = (16, 8, 4, 2, 1)
OWN = (find("adamw")(),)
MB = 2**20

# what a rung leaves of weights, gradients and states, of activations, and of the logits; and the time that it takes
LAWS = {
    "recompute": (1.0, 0.25, 1.0, 1.35),
    "recompute(keep=('attention', 'matmul'))": (1.0, 0.6, 1.0, 1.1),
    "chunked_loss": (1.0, 1.0, 0.1, 1.02),
    "activation_offload": (1.0, 0.3, 1.0, 1.6),
    "optimizer_offload": (0.5, 1.0, 1.0, 1.25),
    "bf16": (1.05, 0.5, 0.5, 0.6),
    "fp16": (1.05, 0.5, 0.5, 0.62),
    "adamw_8bit": (0.6, 1.0, 1.0, 1.01),
    "adamw_4bit": (0.55, 1.0, 1.0, 1.02),
    "pure_bf16": (0.5, 0.5, 0.5, 0.7),
    "lora": (0.3, 0.9, 1.0, 0.8),
    "nf4": (0.2, 1.0, 1.0, 1.3),
}


@dataclass
class Laws:
    """Predicts by `LAWS`; a rung without one changes nothing, and nf4 needs adapters beside it."""

    fixed_micro_batch: bool = False
    overhead: float = 0.05  # seconds of a micro-batch
    cache: float = 0.0  # by how much longer an example takes in a micro-batch of the whole window
    together: float = (
        1.0  # what is left of activations and logits where there are several rungs, beyond what each leaves
    )
    asked: list[tuple[Any, int]] = field(default_factory=list)
    subject: Any = field(
        default_factory=lambda: SimpleNamespace(
            window=SimpleNamespace(rows=ROWS), techniques=OWN, loaded_so=lambda added: False
        )
    )
    machine: Any = field(
        default_factory=lambda: SimpleNamespace(
            type="cpu", device=SimpleNamespace(flops={"bfloat16": 1e12, "float16": 1e12})
        )
    )

    def predict(self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False) -> Prediction:
        assert isinstance(plan.micro_batch, int)
        names = [told(each) for each in techniques]
        self.asked.append((tuple(names), plan.micro_batch))
        if any(name in ("nf4", "int8") for name in names) and "lora" not in names:
            raise SettingError("nf4: nothing is left to be trained. Add lora.")
        return self.law(names, plan.micro_batch)

    def law(self, names: Sequence[str], size: int) -> Prediction:
        shares = [LAWS[name] for name in names if name in LAWS]
        kept, activations, logits, slower = (
            math.prod(column) for column in zip((1.0,) * 4, *shares, strict=True)
        )
        passes = math.ceil(ROWS / size)
        more = self.together if len(shares) > 1 else 1.0
        base = round(400 * kept) * MB
        forward = {"weights": base, "activations": round(40 * size * activations * more) * MB}
        loss = {**forward, "temporaries": round(60 * size * logits * more) * MB}
        optimizer = {"weights": base, "temporaries": 100 * MB}
        phases = {"forward": forward, "loss": loss, "backward": loss, "optimizer": optimizer}
        peak = max(sum(each.values()) for each in phases.values())
        seconds = slower * (1 + self.cache * size / ROWS) + self.overhead * passes
        return Prediction(
            peak, {}, {}, peak + 100 * MB, 0, seconds, None, None, 1.0, 1, 0.5, {}, peak_by_phase=phases
        )

    def every(self, level: Fidelity, coarsest: Fidelity) -> Iterator[Prediction]:
        """Of all plans of a level."""
        for names in every_set(level, coarsest):
            yield from (self.law(names, size) for size in SIZES)


@cache
def every_set(level: Fidelity, coarsest: Fidelity) -> list[list[str]]:
    """The names of all sets of techniques that have laws and are of a level."""
    device: Any = SimpleNamespace(flops={"bfloat16": 1e12, "float16": 1e12})
    rungs = [
        *placements(),
        *(each for one in Fidelity if 0 < one <= coarsest for each in coarser(one, device)),
    ]
    rungs = [each for each in rungs if told(each) in LAWS]
    found = []
    for count in range(len(rungs) + 1):
        for added in combinations(rungs, count):
            try:
                techniques = together(OWN, added)
            except PlanConflict:
                continue
            names = [told(each) for each in techniques]
            if level_of(techniques) is level and not ("nf4" in names and "lora" not in names):
                found.append(names)
    return found


def searched(laws: Laws, megabytes: float, fidelity: Fidelity = Fidelity.FULL) -> Search:
    found = laws.predict(Plan(micro_batch=ROWS), OWN)
    budget = Budget(round(megabytes * MB), fidelity=fidelity, margin=0.0)
    own = Candidate(OWN, ROWS, (), found, budget.holds(found))
    return Search(laws, Plan(), budget, time.monotonic() + 60, own)  # type: ignore[arg-type]


@pytest.mark.parametrize("megabytes", [2000, 1100, 900, 700, 520, 410, 390])
@pytest.mark.parametrize("overhead", [0.0, 0.1])
def test_the_choice_is_as_fast_as_the_best_of_all_plans(megabytes: int, overhead: float) -> None:
    laws = Laws(overhead=overhead)
    search = searched(laws, megabytes)
    chosen = search.best()
    fitting = [found for found in laws.every(Fidelity.FULL, Fidelity.FULL) if search.budget.holds(found)]
    if not fitting:
        assert chosen is None
        return
    best = min(found.seconds_per_update for found in fitting)
    assert chosen is not None and chosen.fits
    assert chosen.found.seconds_per_update <= best / 0.99
    assert len(laws.asked) <= 24, "few of the 240 plans"


def test_what_may_not_be_added_is_never_predicted() -> None:
    laws = Laws()
    search = replace(searched(laws, 560), may_add=lambda technique: told(technique) == "recompute")
    laws.asked.clear()
    search.best()
    assert {name for names, _ in laws.asked for name in names} == {*map(told, OWN), "recompute"}


def test_even_micro_batches_are_divisors_of_the_window() -> None:
    laws = Laws()
    laws.subject.window.rows = 12
    search = searched(laws, 520)
    assert search._sizes == [12, 8, 6, 4, 3, 2, 1]
    assert replace(search, even=True)._sizes == [12, 6, 4, 3, 2, 1]


def test_no_rung_is_looked_at_where_the_whole_window_fits_and_is_the_fastest() -> None:
    laws = Laws()
    chosen = searched(laws, 4000).best()
    assert chosen is not None and (chosen.micro_batch, chosen.added) == (ROWS, ())
    assert {names for names, _ in laws.asked} == {("adamw",)}


def test_a_smaller_micro_batch_is_chosen_where_it_is_faster_though_more_would_fit() -> None:
    chosen = searched(Laws(overhead=0.01, cache=1.0), 4000).best()
    assert chosen is not None
    best = min((0.01 * ROWS / size + size / ROWS, size) for size in SIZES)
    assert (chosen.micro_batch, chosen.added) == (best[1], ())


def test_a_coarser_level_is_looked_at_only_where_nothing_finer_fits() -> None:
    assert level_of_choice(600, Fidelity.COMPACT) is Fidelity.FULL  # though bf16 would be faster
    assert level_of_choice(330, Fidelity.COMPACT) is Fidelity.COMPACT
    assert level_of_choice(330, Fidelity.FULL) is None


def level_of_choice(megabytes: int, fidelity: Fidelity) -> Fidelity | None:
    chosen = searched(Laws(), megabytes, fidelity).best()
    return None if chosen is None else chosen.level


def test_what_is_estimated_not_to_fit_is_tried_before_that_is_said() -> None:
    laws = Laws(together=0.5, fixed_micro_batch=True)
    # offload, recompute and chunked loss: 200 + 48 + 96 + 100 by the product of what each leaves, 200 + 100 + 100 in truth
    chosen = searched(laws, 420).best()
    assert chosen is not None and chosen.fits


def test_where_nothing_fits_each_level_says_the_least_that_any_of_its_plans_needs() -> None:
    laws = Laws()
    search = searched(laws, 50)
    assert search.best() is None
    needed = search.needed()
    for level in Fidelity:
        least = min(found.reserved_bytes for found in laws.every(level, level))
        assert needed[level.label] == pytest.approx(least, rel=0.02)
    assert why_not(search, needed).startswith("Nothing that was tried fits in 50 MiB with 0% left free.")
    assert "at quantized" in why_not(search, needed)


def test_a_level_that_is_not_allowed_is_no_reason_to_blame_the_host() -> None:
    search = searched(Laws(), 395)
    assert search.best() is None
    needed = search.needed()
    assert needed["adapters"] < 395 * MB < needed["full"]
    assert "host" not in why_not(search, needed)


def test_an_impossible_budget_names_levels_beyond_the_one_that_is_allowed() -> None:
    search = searched(Laws(), 50)
    search.best()
    assert all(each.level is Fidelity.FULL for each in search.tried)
    assert list(search.needed()) == [level.label for level in Fidelity]


def test_every_rejected_rung_has_the_bytes_it_came_to_or_was_refused_by_name() -> None:
    search = searched(Laws(), 900)
    search.best()
    found = rejected(search)
    assert {"optimizer_in_backward + micro-batch 8"} <= {
        each.rung for each in found if "saves nothing" in each.reason
    }
    for each in found:
        assert each.bytes is not None and each.bytes > 0, each
    rungs = [each.rung for each in found]
    assert len(rungs) == len(set(rungs))


class Broken(Laws):
    """One of whose rungs cannot be run, in a way that nobody thought of."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        if "recompute" in names:
            raise RuntimeError("two devices\nand more words")
        return super().law(names, size)


def test_a_rung_that_the_planner_cannot_run_is_rejected_and_the_others_are_compared() -> None:
    search = searched(Broken(), 700)
    best = search.best()
    assert best is not None and best.fits
    reasons = {each.reason for each in rejected(search) if each.rung.startswith("recompute")}
    assert "the planner cannot run it: RuntimeError: two devices" in reasons


def test_a_set_of_rungs_is_either_an_alternative_or_rejected_and_named_once() -> None:
    search = searched(Laws(overhead=0.01), 900)
    chosen = search.best()
    assert chosen is not None
    runners_up = alternatives(search, chosen)
    added = [each.choice.added for each in runners_up]
    assert runners_up and len(added) == len(set(added))
    assert all(each.reserved_bytes <= 900 * MB for each in runners_up)
    assert list(runners_up) == sorted(runners_up, key=lambda each: each.seconds_per_update)
    assert not {each.rung for each in runners_up} & {each.rung for each in rejected(search)}
    assert chosen.rung not in {each.rung for each in runners_up}


def test_the_first_sentence_says_what_was_chosen_and_what_the_recipe_alone_would_need() -> None:
    search = searched(Laws(), 900)
    chosen = search.best()
    assert chosen is not None
    told_why = why(chosen, search)
    assert chosen.rung in told_why and "of 900 MiB" in told_why
    assert "2.05 GiB" in told_why, "400 + 100 + 16 · (40 + 60) MiB"


class NoGradients(Laws):
    """Where the optimizer works in backward, a window that is taken whole keeps no gradients; no other rung changes anything."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        gradients = 0 if "optimizer_in_backward" in names and size == ROWS else 100 * MB
        kept = {"weights": 400 * MB, "gradients": gradients, "activations": 2 * size * MB}
        seconds = 1 + self.overhead * ROWS / size
        return replace(
            super().law([], size),
            reserved_bytes=sum(kept.values()),
            seconds_per_update=seconds,
            peak_bytes=sum(kept.values()),
            peak_by_phase={"backward": kept},
        )


def test_a_rung_that_saves_nothing_in_small_micro_batches_is_found_where_it_saves_something_of_the_whole_window() -> (
    None
):
    chosen = searched(NoGradients(), 460).best()  # 400 + 32, and with gradients 400 + 100 + 2 at least
    assert chosen is not None
    assert (chosen.added, chosen.micro_batch) == (("optimizer_in_backward",), ROWS)


def test_a_rung_that_saves_something_is_weighed_once() -> None:
    laws = Laws()
    searched(laws, 900).best()
    first = [size for names, size in laws.asked if names == ("adamw", "recompute")]
    assert ROWS not in first, "by itself it would need 400 + 16 · (10 + 60) + 100"


def test_what_a_prediction_may_be_short_of_has_to_fit_too() -> None:
    class Doubtful(Laws):
        def law(self, names: Sequence[str], size: int) -> Prediction:
            return replace(super().law(names, size), doubt_bytes=30 * MB)

    sure = searched(Laws(), 905).best()
    assert sure is not None
    room = sure.found.reserved_bytes
    assert searched(Laws(), room / MB).best() == sure
    doubtful = searched(Doubtful(), room / MB).best()
    assert doubtful is not None and not doubtful.same(sure)
    assert doubtful.found.most_bytes == doubtful.found.reserved_bytes + 30 * MB <= room


def test_batch_norm_keeps_the_window_whole() -> None:
    search = searched(Laws(fixed_micro_batch=True), 900)
    search.best()
    assert {each.micro_batch for each in search.tried} == {ROWS}


def test_a_named_micro_batch_stays() -> None:
    laws = Laws()
    search = searched(laws, 900)
    search.plan = Plan(micro_batch=ROWS)
    search.best()
    assert {size for _, size in laws.asked} == {ROWS}


def test_after_the_deadline_what_was_found_is_compared() -> None:
    laws = Laws()
    search = searched(laws, 900)
    search.deadline = 0.0
    chosen = search.best()
    assert chosen is not None and chosen.fits


def test_where_even_the_smallest_plan_is_far_too_large_no_plan_of_a_level_is_tried() -> None:
    laws = Laws()
    search = searched(laws, 50, Fidelity.QUANTIZED)
    assert search.best() is None
    weighed = {names for names, _ in laws.asked}
    assert max(map(len, weighed)) == 3, "nothing but what the estimates come from"
    assert {("adamw", "lora", "nf4"), ("adamw", "bf16", "lora"), ("adamw", "pure_bf16", "lora")} <= weighed


class Streamed(Laws):
    """Weights that are frozen may be on the host; others may not."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        streamed = "weight_streaming" in names and "lora" in names
        return super().law([*names, "nf4"] if streamed else names, size)


def test_what_is_done_to_frozen_weights_is_looked_at_once_there_are_adapters() -> None:
    laws = Streamed()
    chosen = searched(laws, 225, Fidelity.ADAPTERS).best()
    assert chosen is not None and {"lora", "weight_streaming"} <= set(chosen.added)
    assert ("adamw", "weight_streaming") not in {names for names, _ in laws.asked}


def test_on_an_accelerator_what_is_reserved_beside_the_peak_grows_with_it_but_for_what_is_fixed() -> None:
    device = SimpleNamespace(flops={"bfloat16": 1e12}, reserved=40 * MB)
    laws = Laws(machine=SimpleNamespace(type="cuda", device=device))
    assert searched(laws, 900)._estimator.fixed_bytes == 40 * MB
    assert searched(Laws(), 900)._estimator.fixed_bytes is None
