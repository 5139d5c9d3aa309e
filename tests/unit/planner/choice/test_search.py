"""The search against a machine of known laws, on which all plans can be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from snugfit.core.job import Plan
from snugfit.core.technique import Fidelity, Sharing, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.choice.adapter_rate import adapts, at_rate_of_adapters
from snugfit.planner.choice.candidate import Budget, Candidate
from snugfit.planner.choice.channel import UNCHECKED
from snugfit.planner.choice.goals import Goal
from snugfit.planner.choice.reasons import alternatives, rejected, why, why_not
from snugfit.planner.choice.rungs import (
    coarser,
    freezes,
    is_for_frozen,
    label,
    level_of,
    placements,
    together,
)
from snugfit.planner.choice.search import Search
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.plan import Request, answer_of, explained, explored, look_for
from snugfit.planner.prediction.staying import keeping, staying
from snugfit.planner.trace.recorder import OutOfTime, never
from snugfit.techniques import find

Late = Callable[[], bool]

ROWS = 16
SIZES = (16, 8, 4, 2, 1)
OWN = (find("adamw")(),)
MB = 2**20
FASTEST = Goal()
SPARSE = "recompute(keep=('attention', 'matmul'))"

# what a rung leaves of weights, gradients and states, of activations, and of the logits; and the time that it takes
LAWS = {
    "recompute": (1.0, 0.25, 1.0, 1.35),
    SPARSE: (1.0, 0.6, 1.0, 1.1),
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
    sharing: Sharing | None = None
    depth: int = 12
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
            type="cuda",
            expandable_segments=True,
            device=SimpleNamespace(
                kind="cuda",
                reserved=0,
                flops={"float32": 1e12, "bfloat16": 1e12},
                efficiency={"matmul": 1.0},
                calibrated=False,
            ),
        )
    )

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> Any:
        def traced(size: int) -> Prediction:
            return self.predict(replace(plan, micro_batch=size), techniques)

        names = self.names_of(techniques)
        return SimpleNamespace(
            traced=traced,
            between=lambda size: self.law(names, size),
            staying=lambda size, blocks: self.staying(names, size, blocks),
        )

    def names_of(self, techniques: Sequence[Technique]) -> list[str]:
        """The techniques without the settings of the recipe's optimizer, which the one in its place takes."""
        (own,) = self.subject.techniques
        taken = at_rate_of_adapters(own) if adapts(techniques) else own
        return [label(each, taken) for each in techniques]

    def staying(self, names: Sequence[str], size: int, blocks: int) -> Prediction | None:
        """What a plan needs with so many blocks on the device: it cannot be told."""
        return None

    def predict(
        self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False, late: Late = never
    ) -> Prediction:
        assert isinstance(plan.micro_batch, int)
        names = self.names_of(techniques)
        self.asked.append((tuple(names), plan.micro_batch))
        if any(name in ("nf4", "int8") for name in names) and "lora" not in names:
            raise SettingError.from_text("nf4: nothing is left to be trained. Add lora.")
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
            peak,
            {"weights": base},
            {},
            peak + 100 * MB,
            0,
            seconds,
            None,
            None,
            1.0,
            1,
            0.5,
            {},
            peak_by_phase=phases,
        )

    def every(self, level: Fidelity, coarsest: Fidelity) -> Iterator[Prediction]:
        """Of all plans of a level."""
        for names in every_set(level, coarsest):
            yield from (self.law(names, size) for size in SIZES)


@cache
def every_set(level: Fidelity, coarsest: Fidelity) -> list[list[str]]:
    """The names of all sets of techniques that have laws and are of a level; what is for frozen weights where some are."""
    device: Any = SimpleNamespace(kind="cuda", flops={"float32": 1e12, "bfloat16": 1e12})
    rungs = [
        *placements(device),
        *(each for one in Fidelity if 0 < one <= coarsest for each in coarser(one, device)),
    ]
    rungs = [each for each in rungs if label(each) in LAWS]
    found = []
    for count in range(len(rungs) + 1):
        for added in combinations(rungs, count):
            try:
                techniques = together(OWN, added)
            except PlanConflict:
                continue
            names = [label(each) for each in techniques]
            if freezes(techniques) < any(map(is_for_frozen, techniques)):
                continue
            if level_of(techniques) is level:
                found.append(names)
    return found


def searched(
    laws: Laws,
    megabytes: float,
    fidelity: Fidelity = Fidelity.FULL,
    goal: Goal = FASTEST,
    own: tuple[Technique, ...] = OWN,
) -> Search:
    laws.subject.techniques = own
    found = laws.predict(Plan(micro_batch=ROWS), own)
    budget = Budget(round(megabytes * MB), fidelity=fidelity, margin=0.0)
    asked = Candidate(own, ROWS, (), found, budget.holds(found))
    return Search(laws, Plan(), budget, math.inf, asked, goal)  # type: ignore[arg-type]


def fastest(laws: Laws, megabytes: float, level: Fidelity, coarsest: Fidelity) -> float:
    """Seconds of the fastest of all plans of a level that fit; infinite where none does."""
    every = laws.every(level, coarsest)
    fitting = (each for each in every if each.reserved_bytes <= megabytes * MB)
    return min((each.seconds_per_update for each in fitting), default=math.inf)


@pytest.mark.parametrize("megabytes", [2000, 1100, 900, 700, 520, 410, 390])
@pytest.mark.parametrize("overhead", [0.0, 0.1])
def test_the_choice_is_as_fast_as_the_best_of_all_plans(megabytes: int, overhead: float) -> None:
    laws = Laws(overhead=overhead)
    search = searched(laws, megabytes)
    chosen = search.best()
    best = fastest(laws, megabytes, Fidelity.FULL, Fidelity.FULL)
    if best == math.inf:
        assert chosen is None
        return
    assert chosen is not None and chosen.fits
    assert chosen.prediction.seconds_per_update <= 1.05 * best
    assert len(laws.asked) <= 60, "of the 240 plans"
    assert search.complete


class Stepping(Laws):
    """Whose step takes its time beside the passes, in few bits on the host the most."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        made = super().law(names, size)
        on_host, few_bits = "optimizer_offload" in names, "adamw_4bit" in names
        step = (0.3 if on_host else 0.02) * (8 if few_bits else 1)
        return replace(made, seconds_per_update=made.seconds_per_update + step, step_seconds=step)


@pytest.mark.parametrize("megabytes", [2000, 900, 520, 390, 320, 260])
@pytest.mark.parametrize("level", [Fidelity.FULL, Fidelity.COMPACT])
def test_the_choice_is_as_fast_as_the_best_where_steps_take_their_time(
    megabytes: int, level: Fidelity
) -> None:
    search = searched(Stepping(overhead=0.1), megabytes, level, Goal(worth=1.0))
    chosen = search.best()
    levels = [each for each in Fidelity if each <= level]
    best = min(fastest(Stepping(overhead=0.1), megabytes, each, level) for each in levels)
    assert (chosen is None) == (best == math.inf)
    assert chosen is None or chosen.prediction.seconds_per_update <= 1.05 * best


def test_what_may_not_be_added_is_never_predicted() -> None:
    laws = Laws()
    search = replace(searched(laws, 560), may_add=lambda technique: label(technique) == "recompute")
    laws.asked.clear()
    search.best()
    assert {name for names, _ in laws.asked for name in names} == {*map(label, OWN), "recompute"}


def test_what_devices_cannot_have_that_share_the_weights_is_never_predicted() -> None:
    laws = Laws(sharing=Sharing.SHARDS)
    searched(laws, 200, Fidelity.COMPACT).best()
    asked = {name for names, _ in laws.asked for name in names}
    assert "adamw_8bit" in asked and "adamw_8bit(paged=True)" not in asked


def test_a_plan_is_predicted_once_in_whatever_order_its_rungs_were_added() -> None:
    laws = Laws(overhead=0.1)
    searched(laws, 300, Fidelity.QUANTIZED).best()
    asked = [(frozenset(names), size) for names, size in laws.asked]
    assert len(asked) == len(set(asked)) > 20


def test_where_weights_alone_do_not_fit_nothing_is_done_to_activations() -> None:
    laws = Laws()
    searched(laws, 150).best()
    assert {names for names, _ in laws.asked} == {("adamw",)}


def test_weights_that_do_not_fit_are_not_tried_in_another_precision_that_leaves_them_as_they_are() -> None:
    laws = Laws()
    laws.machine.device.flops["tf32"] = 1e12
    searched(laws, 150, Fidelity.MIXED).best()
    asked = {names for names, _ in laws.asked}
    assert ("adamw", "bf16") in asked and ("adamw", "tf32") not in asked


def test_what_each_level_needs_is_looked_for_where_it_is_asked_and_nothing_fits() -> None:
    request = Request(Plan(), Budget(50 * MB, margin=0.0))
    outcome = look_for(Laws(), request)  # type: ignore[arg-type]
    assert outcome.choice is None and not outcome.needed
    assert {*explained(outcome, request).needed} == {level.label for level in Fidelity}
    assert explained(outcome, replace(request, search=False)) is outcome
    fitting = look_for(Laws(), replace(request, budget=Budget(4000 * MB)))  # type: ignore[arg-type]
    assert explained(fitting, request) is fitting


class OfTenUpdates(Laws):
    """Where it is known how long the whole run takes."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law(names, size)
        return replace(found, seconds_total=10 * found.seconds_per_update)


@pytest.mark.parametrize(
    ("brief", "megabytes", "searches"), [(20.0, 4000, False), (5.0, 4000, True), (20.0, 520, True)]
)
def test_a_run_that_is_over_before_a_search_pays_is_not_searched_for_where_it_fits(
    brief: float, megabytes: int, searches: bool
) -> None:
    laws = OfTenUpdates()
    laws.machine.type = "cpu"  # where the recipe's own plan may be faster in smaller micro-batches
    outcome = look_for(laws, Request(Plan(), Budget(megabytes * MB, margin=0.0), brief=brief))  # type: ignore[arg-type]
    assert outcome.choice is not None and outcome.choice.fits
    assert (outcome.search.looked > 0) is searches
    said = "No other plan was looked at: the whole run takes 10.5 s" in " ".join(outcome.notes)
    assert said is not searches


def test_a_plan_without_a_search_gives_no_reason_why_nothing_else_was_looked_at() -> None:
    outcome = look_for(OfTenUpdates(), Request(Plan(), Budget(4000 * MB), search=False, brief=20.0))  # type: ignore[arg-type]
    assert outcome.choice is not None and not outcome.notes


def test_even_micro_batches_are_divisors_of_the_window() -> None:
    laws = Laws()
    laws.subject.window.rows = 12
    search = searched(laws, 520)
    assert search._sizes == [12, 8, 6, 4, 3, 2, 1]
    assert replace(search, even=True)._sizes == [12, 6, 4, 3, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [4000, 2000, 900, 600, 420, 330, 260, 230, 170])
@pytest.mark.parametrize("coarsest", [*Fidelity])
def test_a_level_below_mixed_is_chosen_where_nothing_finer_fits_or_it_is_worth_it(
    megabytes: int, coarsest: Fidelity
) -> None:
    laws = Laws()
    chosen = searched(laws, megabytes, coarsest).best()
    best = {level: fastest(laws, megabytes, level, coarsest) for level in Fidelity if level <= coarsest}
    free = min(seconds for level, seconds in best.items() if level <= Fidelity.MIXED)
    expected = free
    for level, seconds in best.items():
        if level > Fidelity.MIXED and 1.5 * seconds <= expected:
            expected = seconds
    if expected == math.inf:
        assert chosen is None
        return
    assert chosen is not None and chosen.fits
    assert chosen.prediction.seconds_per_update <= 1.05 * expected * 1.0001
    if expected == free:
        assert chosen.level <= Fidelity.MIXED


def test_mixed_precision_is_chosen_for_its_time_though_the_recipe_fits_without() -> None:
    chosen = searched(Laws(), 4000, Fidelity.MIXED).best()
    assert chosen is not None and chosen.added == ("bf16",)


def test_the_finest_level_at_which_anything_fits_is_chosen_where_that_is_the_goal() -> None:
    chosen = searched(Laws(), 4000, Fidelity.QUANTIZED, Goal("finest")).best()
    assert chosen is not None and chosen.level is Fidelity.FULL
    chosen = searched(Laws(), 330, Fidelity.QUANTIZED, Goal("finest")).best()
    assert chosen is not None and chosen.level is not Fidelity.QUANTIZED


def test_a_faster_plan_of_a_coarser_level_bounds_no_finer_plan_where_the_finest_is_asked_for() -> None:
    goal = Goal("finest")
    search = searched(Laws(), 4000, Fidelity.MIXED, goal)
    chosen = search.best()
    mixed = [each for each in search.tried if each.fits and each.level is Fidelity.MIXED]
    assert chosen is not None and mixed, "says what precision costs"
    least = min(each.prediction.seconds_per_update for each in mixed)
    assert least < goal.limit(Fidelity.FULL, search.tried) <= chosen.prediction.seconds_per_update


def test_the_smallest_plan_takes_no_more_than_some_times_the_time_of_the_fastest() -> None:
    laws = Laws()
    quick = searched(laws, 4000, Fidelity.MIXED).best()
    small = searched(laws, 4000, Fidelity.MIXED, Goal("smallest", slower=2.0)).best()
    assert quick is not None and small is not None
    assert small.prediction.reserved_bytes < 0.7 * quick.prediction.reserved_bytes
    assert small.prediction.seconds_per_update <= 2 * quick.prediction.seconds_per_update


@pytest.mark.parametrize(
    ("level", "megabytes", "slower"),
    [
        (Fidelity.MIXED, 450, 2.0),
        pytest.param(Fidelity.QUANTIZED, 4000, 2.0, marks=pytest.mark.slow),
        (Fidelity.QUANTIZED, 450, 1.2),
    ],
)
def test_the_smallest_plan_is_that_of_all_plans_and_is_found_in_less_than_may_be_run(
    level: Fidelity, megabytes: int, slower: float
) -> None:
    laws, goal = Stateful(), Goal("smallest", slower=slower)
    search = searched(laws, megabytes, level, goal)
    chosen = search.best()
    every: Any = [
        SimpleNamespace(level=one, added=names, micro_batch=size, prediction=laws.law(names, size), fits=True)
        for one in Fidelity
        if one <= level
        for names in every_set(one, level)
        for size in SIZES
    ]
    best = goal.choose(each for each in every if each.prediction.reserved_bytes <= megabytes * MB)
    assert chosen is not None and best is not None
    assert chosen.prediction.reserved_bytes <= 1.03 * best.prediction.reserved_bytes
    assert chosen.level <= best.level
    assert search.complete and search.looked <= 90


def test_a_smaller_micro_batch_is_chosen_where_it_is_faster_though_more_would_fit() -> None:
    laws = Laws(overhead=0.01, cache=1.0)
    laws.machine.type = "cpu"
    chosen = searched(laws, 4000).best()
    assert chosen is not None and chosen.added == ()
    best = min(0.01 * ROWS / size + size / ROWS for size in SIZES)
    assert chosen.prediction.seconds_per_update <= 1.05 * (1 + best)


def test_where_nothing_fits_each_level_says_the_least_that_its_smallest_plans_need() -> None:
    laws = Laws()
    search = searched(laws, 50)
    assert search.best() is None
    assert all(each.level is Fidelity.FULL for each in search.tried), (
        "no level beyond the one that is allowed"
    )
    needed = search.needed()
    assert list(needed) == [level.label for level in Fidelity]
    for level in Fidelity:
        least = min(found.reserved_bytes for found in laws.every(level, Fidelity.QUANTIZED))
        assert needed[level.label] == pytest.approx(least, rel=0.3), "of what the ladder has"
    assert why_not(search, needed)[0] == "Nothing that was tried fits in 50 MiB with 0% left free.", (
        "the smallest budgets are shown beside it, and not twice"
    )


def test_a_search_that_has_looked_at_all_it_may_still_says_what_each_level_needs() -> None:
    search = searched(Laws(), 50)
    search.most = 0
    assert search.best() is None
    assert list(search.needed()) == [level.label for level in Fidelity]


def test_a_level_that_is_not_allowed_is_no_reason_to_blame_the_host() -> None:
    search = searched(Laws(), 395)
    assert search.best() is None
    needed = search.needed()
    assert needed["adapters"] < 395 * MB < needed["full"]
    said = why_not(search, needed)
    assert "host" not in said[0]
    assert "On this device it fits at compact: --fidelity compact." in said


@pytest.mark.parametrize("grow", [False, True])
def test_where_only_what_lies_unused_between_blocks_of_memory_is_too_much_the_setting_is_named(
    grow: bool,
) -> None:
    laws = Laws()
    laws.machine.expandable_segments = grow
    least = min(found.peak_bytes for found in laws.every(Fidelity.FULL, Fidelity.FULL))
    search = searched(laws, least / MB + 50)
    assert search.best() is None
    said = " ".join(why_not(search, search.needed()))
    assert ("set PYTORCH_ALLOC_CONF=expandable_segments:True" in said) is not grow
    beside = searched(laws, least / MB - 50)
    assert beside.best() is None
    assert "expandable_segments" not in " ".join(why_not(beside, beside.needed()))


class Crowded(Laws):
    """Fits the device, and but for weights of 16 bits not the host."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law(names, size)
        seconds = found.seconds_per_update / (2 if "lora" in names else 1)
        return replace(
            found, host_peak_bytes=0 if "pure_bf16" in names else 500 * MB, seconds_per_update=seconds
        )


def test_where_the_host_has_no_room_the_levels_that_fit_there_too_are_told() -> None:
    search = searched(Crowded(), 4000, Fidelity.MIXED)
    search.budget = replace(search.budget, host_bytes=400 * MB)
    search.tried = [replace(search.asked, fits=False)]
    assert search.best() is None
    said = why_not(search, search.needed())
    assert said[0].startswith("Nothing that was tried fits the host")
    assert said[1] == "On this device it fits at compact: --fidelity compact."
    assert said[2].startswith("At adapters an update takes ")
    assert "better" not in said[3] and said[3].endswith(" plans were run."), (
        "none is better than what is none"
    )


class OnTheHost(Laws):
    """Whose states of few bits stay on the device where whole ones lie on the host."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        away = "optimizer_offload" in names and not any(name.startswith("adamw_8bit") for name in names)
        found = super().law(names, size)
        return found if away else replace(found, reserved_bytes=found.reserved_bytes + 1000 * MB)


def test_what_a_level_needs_is_told_of_whole_states_on_the_host_too() -> None:
    laws = OnTheHost()
    search = searched(laws, 50)
    assert search.best() is None
    least = min(found.reserved_bytes for found in laws.every(Fidelity.COMPACT, Fidelity.QUANTIZED))
    assert search.needed()["compact"] == pytest.approx(least, rel=0.3) and least < 1000 * MB


def test_a_frontier_and_what_each_level_needs_are_of_the_same_plans() -> None:
    request = Request(Plan(), Budget(50 * MB, margin=0.0))
    outcome = explored(explained(look_for(OnTheHost(), request), request))  # type: ignore[arg-type]
    smallest = {each.level: each.reserved_bytes for each in outcome.frontier if each.what == "smallest"}
    assert outcome.needed == smallest


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
    reasons = {each.reason for each in rejected(search) if "recompute" in each.rung}
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
    told_why = why(chosen, search)[0]
    assert chosen.rung in told_why and "of 900 MiB" in told_why
    assert "2.05 GiB" in told_why, "400 + 100 + 16 · (40 + 60) MiB"


def test_what_a_prediction_may_be_short_of_has_to_fit_too() -> None:
    class Doubtful(Laws):
        def law(self, names: Sequence[str], size: int) -> Prediction:
            return replace(super().law(names, size), doubt_bytes=30 * MB)

    sure = searched(Laws(), 905).best()
    assert sure is not None
    room = sure.prediction.reserved_bytes
    assert searched(Laws(), room / MB).best() == sure
    doubtful = searched(Doubtful(), room / MB).best()
    assert doubtful is not None and not doubtful.same(sure)
    assert doubtful.prediction.most_bytes == doubtful.prediction.reserved_bytes + 30 * MB <= room


class Short(Laws):
    """Whose runs of few micro-batches come to a little less than what the whole window needs."""

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> Any:
        names = [label(each) for each in techniques]
        return SimpleNamespace(
            traced=lambda size: self.law(names, size), between=lambda size: self.law(names, size)
        )

    def predict(
        self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False, late: Late = never
    ) -> Prediction:
        found = super().predict(plan, techniques)
        return found if rough else replace(found, reserved_bytes=found.reserved_bytes + MB)


@pytest.mark.parametrize("megabytes", [1200, 700, 600])
def test_the_search_goes_on_where_its_choice_turns_out_not_to_fit(megabytes: int) -> None:
    first = searched(Laws(), megabytes).best()
    assert first is not None
    tight = first.prediction.reserved_bytes
    chosen = look_for(Short(), Request(Plan(), Budget(tight, margin=0.0))).choice  # type: ignore[arg-type]
    assert chosen is not None and chosen.fits and chosen.prediction.reserved_bytes <= tight
    best = fastest(Laws(), tight / MB - 1, Fidelity.FULL, Fidelity.FULL)
    assert chosen.prediction.seconds_per_update <= 1.05 * best


def test_what_one_plan_was_short_of_another_may_not_be_until_three_were() -> None:
    search = searched(Laws(), 905)
    search.best()
    first, *others = (each for each in search.tried if each.fits)
    believed = []
    for each in others[:3]:
        search._checked(each, replace(each.prediction, reserved_bytes=1000 * search.budget.usable))
        believed.append(next(one.fits for one in search.tried if one.same(first)))
    assert believed == [True, True, False]


class Accumulating(Laws):
    """Where several passes hold gradients that one does not."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law(names, size)
        more = 0 if size == ROWS else 2000 * MB
        return replace(found, reserved_bytes=found.reserved_bytes + more)


@pytest.mark.parametrize("level", [Fidelity.FULL, Fidelity.MIXED])
@pytest.mark.parametrize("megabytes", [2300, 1600, 1000])
def test_a_window_that_fits_in_one_pass_alone_is_chosen_so(megabytes: int, level: Fidelity) -> None:
    laws = Accumulating(overhead=0.5)
    chosen = searched(laws, megabytes, level).best()
    assert chosen is not None and chosen.fits and chosen.micro_batch == ROWS
    best = min(fastest(laws, megabytes, each, level) for each in Fidelity if each <= level)
    assert chosen.prediction.seconds_per_update <= 1.05 * best


class Offloaded(Laws):
    """Where only what lasts is large: with the optimizer on the host all fits, and so it does with gradients there, in less time."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law([], 1)
        away = {"optimizer_offload", "gradient_offload"} & {*names}
        slower = 20.0 if "optimizer_offload" in away else 10.0 if away else 1.0
        less = 300 * MB * len(away)
        return replace(
            found,
            peak_by_kind={"weights": 100 * MB, "optimizer": 400 * MB},
            reserved_bytes=found.reserved_bytes - less,
            seconds_per_update=slower * ROWS / size,
        )


def test_what_is_too_slow_in_one_pass_is_not_run_in_several() -> None:
    laws = Laws(overhead=0.1)
    searched(laws, 410, Fidelity.COMPACT).best()
    assert len(laws.asked) <= 80, "it was 93 as each placement was run in micro-batches of all sizes"


def test_a_plan_is_the_choice_beside_a_coarser_one_only_while_that_is_not_worth_it() -> None:
    laws = Laws(overhead=0.0)
    search = searched(laws, 4000, Fidelity.ADAPTERS)
    adapters = search._trace((find("lora")(), find("bf16")()), ROWS)
    assert adapters is not None and adapters.level is Fidelity.ADAPTERS
    limit = Goal(worth=1.5).limit(Fidelity.MIXED, [adapters])
    assert limit == 1.5 * adapters.prediction.seconds_per_update
    assert Goal("finest").limit(Fidelity.MIXED, [adapters]) == math.inf


def test_what_is_nearly_worth_it_keeps_nothing_from_being_so() -> None:
    search = searched(Laws(), 4000, Fidelity.ADAPTERS)
    lora, bf16 = find("lora")(), find("bf16")()

    def plan(added: Sequence[Technique], seconds: float) -> Candidate:
        made = search._trace(tuple(added), ROWS)
        assert made is not None
        return replace(made, prediction=replace(made.prediction, seconds_per_update=seconds))

    finer, goal = plan([bf16], 15.0), Goal(worth=1.5)
    near, worth_it = plan([lora], 10.2), plan([lora, bf16], 9.9)
    assert goal.choose([finer, near]) is finer
    assert goal.limit(Fidelity.ADAPTERS, [finer, near]) == 10.0, "what takes 3% less is looked at"
    assert goal.choose([finer, near, worth_it]) is worth_it, "though the simpler one is as fast but for 5%"
    assert (
        goal.limit(Fidelity.ADAPTERS, [finer, near, worth_it])
        == worth_it.prediction.seconds_per_update / 1.05
    )


def test_what_is_offloaded_gives_its_place_to_what_is_faster() -> None:
    alone = Offloaded().law([], ROWS)
    chosen = searched(Offloaded(), alone.reserved_bytes / MB - 100).best()
    assert chosen is not None and chosen.added == ("gradient_offload",)


class Bent(Laws):
    """Whose peaks between two sizes lie far below the line through them."""

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> Any:
        traced = super().by_size(plan, techniques)

        def between(size: int) -> Prediction:
            found = traced.between(size)
            return replace(found, reserved_bytes=found.reserved_bytes + 150 * MB)

        return SimpleNamespace(traced=traced.traced, between=between)


def test_a_size_that_others_say_does_not_fit_is_run_where_it_would_be_the_choice() -> None:
    laws = Bent(overhead=0.2)
    need = laws.law([], 4).reserved_bytes / MB
    search = replace(searched(laws, need + 1), may_add=lambda technique: False)
    chosen = search.best()
    assert chosen is not None and chosen.micro_batch == 4


class Hurried(Laws):
    """Whose times between two sizes are told too short, beside adapters that are worth it only as the plan takes in full."""

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> Any:
        traced = super().by_size(plan, techniques)
        short = lambda size: replace(traced.between(size), seconds_per_update=1.0)  # noqa: E731
        return SimpleNamespace(traced=traced.traced, between=short)

    def law(self, names: Sequence[str], size: int) -> Prediction:
        lora, plain = "lora" in names, {*names} == {"adamw"}
        seconds = 0.8 if lora else {16: 0.9, 1: 3.0}.get(size, 1.6) if plain else 9.0
        need = 40 * size if lora else 50 * size + 100 if plain else 9000
        return replace(super().law([], 1), reserved_bytes=need * MB, seconds_per_update=seconds)


def test_what_was_too_slow_beside_the_choice_is_looked_at_where_the_choice_takes_longer_in_full() -> None:
    search = searched(Hurried(), 550, Fidelity.ADAPTERS)
    first = search.best()
    assert first is not None and first.added == (), "adapters are not 1.5 times as fast as what was told"
    chosen = search.confirm(search.choice)
    assert chosen is not None and "lora" in chosen.added


class LastLayer(Laws):
    """Whose adapters are beside the last layer alone, so that nothing goes back through the others."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        share = (0.4 if "lora" in names else 1.0) * (0.8 if "pure_bf16" in names else 1.0)
        flops = 0.4 if "lora" in names else 1.0
        found = super().law([], 1)
        return replace(found, seconds_per_update=share * ROWS / size, flops_per_update=round(flops * 9e11))


def test_what_training_beside_frozen_weights_takes_is_told_by_the_plans_that_were_tried() -> None:
    laws = LastLayer()
    laws.machine.device.flops["bfloat16"] = laws.machine.device.flops["float32"]
    chosen = searched(laws, 4000, Fidelity.ADAPTERS).best()
    assert chosen is not None and chosen.added == ("lora", "pure_bf16")


class BesideTF32(Laws):
    """Whose adapters are worth it beside tf32 alone, which is not on the ladder."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        share = {"bf16": 0.95, "tf32": 0.7} if "lora" in names else {"bf16": 0.6, "tf32": 0.9}
        slower = math.prod(share.get(name, 1.0) for name in names if "_" not in name)
        slower *= 0.5 if "lora" in names else 2.0 if any("_" in name for name in names) else 1.0
        return replace(super().law([], 1), seconds_per_update=slower * ROWS / size)


def test_what_differs_from_the_best_of_a_coarser_level_is_tried_where_that_is_faster_than_the_choice() -> (
    None
):
    laws = BesideTF32()
    laws.machine.device.flops["tf32"] = 1e12
    chosen = searched(laws, 4000, Fidelity.ADAPTERS).best()
    assert chosen is not None and chosen.added == ("lora", "tf32")


class Squeezed(Laws):
    """Whose states leave room for small micro-batches alone, of one format more than of the other."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        away, seconds = "optimizer_offload" in names, 0.5 + 0.1 * math.ceil(ROWS / size)
        if "bf16" in names:
            need, seconds = (220 if away else 420) + 20 * size, seconds + 0.1 * away
        elif "tf32" in names:
            need, seconds = (200 if away else 300) + 40 * size, seconds + 0.6 * away
        else:
            need = 2000
        seconds *= (
            2 if any(each.startswith("recompute") or each.endswith("backward") for each in names) else 1
        )
        found = super().law([], 1)
        kinds = {"weights": 100 * MB, "optimizer": 100 * MB}
        return replace(
            found,
            peak_by_kind=kinds,
            peak_by_phase={},
            reserved_bytes=need * MB,
            seconds_per_update=seconds,
        )


def test_states_make_room_for_larger_micro_batches_of_a_format_that_is_not_the_choice_without() -> None:
    laws = Squeezed()
    laws.machine.device.flops["tf32"] = 1e12
    chosen = searched(laws, 460, Fidelity.MIXED).best()
    assert chosen is not None and {*chosen.added} == {"bf16", "optimizer_offload"}
    assert chosen.micro_batch == 8


class OneBlock(Laws):
    """Of one large block, which has all its activations again when it is computed again, though they would be on the host without."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        recomputed = any(name.startswith("recompute") for name in names)
        away = "activation_offload" in names and not recomputed
        found = super().law([], size)
        slower = 1.1 if "activation_offload" in names else 1.0
        slower *= (1.3 if recomputed else 1.0) * (1.2 if "optimizer_offload" in names else 1.0)
        need = 600 if away else 840 if recomputed else 900
        need -= 100 if "optimizer_offload" in names else 0
        return replace(
            found,
            peak_by_kind={"weights": 100 * MB, "optimizer": 200 * MB},
            reserved_bytes=need * MB,
            seconds_per_update=slower * ROWS / size,
        )


def test_activations_elsewhere_are_tried_without_recomputation_though_with_it_they_do_not_fit() -> None:
    chosen = searched(OneBlock(), 760).best()
    assert chosen is not None and chosen.added == ("activation_offload",)


class Paged(Laws):
    """Whose states alone are too large, and take a little time where they are in pages, much on the host."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        paged, host = "adamw_8bit(paged=True)" in names, "optimizer_offload" in names
        states = 50 if paged or host else 200 if "adamw_8bit" in names else 400
        found = super().law([], size)
        need = found.reserved_bytes + (states - 400) * MB
        kinds = {"weights": 100 * MB, "optimizer": states * MB}
        seconds = (3.0 if host else 1.2 if paged else 1.0) * ROWS / size
        return replace(
            found, peak_by_kind=kinds, peak_by_phase={}, reserved_bytes=need, seconds_per_update=seconds
        )


@pytest.mark.slow
@pytest.mark.parametrize(("room", "chosen"), [(-100, "adamw_8bit"), (-300, "adamw_8bit(paged=True)")])
def test_states_are_in_pages_where_they_do_not_fit_in_few_bits(room: int, chosen: str) -> None:
    laws = Paged()
    found = searched(laws, laws.law([], 1).reserved_bytes / MB + room, Fidelity.COMPACT).best()
    assert found is not None and chosen in found.added
    (one,) = (each for each in found.techniques if each.card.name == "adamw_8bit")
    assert one.learning_rate == OWN[0].learning_rate  # type: ignore[attr-defined]


class Stateful(Laws):
    """Whose states are there throughout a window and in its step, much fewer beside adapters; of few bits they take no time."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        few = {"pure_bf16": 0.5, "adamw_8bit": 0.3, "adamw_4bit": 0.2, "lora": 0.02, "optimizer_offload": 0.0}
        weights = (
            round(200 * math.prod({"pure_bf16": 0.5, "nf4": 0.25}.get(name, 1.0) for name in names)) * MB
        )
        states = round(400 * math.prod(few.get(name, 1.0) for name in names)) * MB
        found = super().law(names, size)
        activations = round(found.peak_by_phase["forward"]["activations"])
        kept = {"weights": weights, "optimizer": states}
        phases = {
            "forward": {**kept, "activations": activations},
            "optimizer": {**kept, "temporaries": 50 * MB},
        }
        kinds = max(phases.values(), key=lambda each: sum(each.values()))
        peak = sum(kinds.values())
        found = replace(found, peak_by_kind=kinds, peak_by_phase=phases, peak_bytes=peak, reserved_bytes=peak)
        return replace(found, host_peak_bytes=MB if "optimizer_offload" in names else 0)


@pytest.mark.slow
def test_something_is_found_in_as_much_as_the_smallest_of_all_plans_needs() -> None:
    laws = Stateful()
    every = (each for level in Fidelity for each in laws.every(level, Fidelity.QUANTIZED))
    room = min(each.reserved_bytes for each in every if not each.host_peak_bytes)
    search = searched(laws, room / MB, Fidelity.QUANTIZED)
    search.budget = replace(search.budget, host_bytes=0)
    chosen = search.best()
    assert chosen is not None and chosen.prediction.reserved_bytes == room


@pytest.mark.parametrize(
    "added", [("adamw_4bit", "pure_bf16"), ("adamw_8bit", "pure_bf16", "lora")], ids=" + ".join
)
@pytest.mark.parametrize("rate", [1e-3, 2e-5])
def test_states_of_fewer_bits_are_tried_beside_what_misses_by_less_than_they_save(
    added: tuple[str, ...], rate: float
) -> None:
    laws = Stateful(overhead=0.0)
    level = Fidelity.ADAPTERS if "lora" in added else Fidelity.COMPACT
    room = laws.law(added, 1).reserved_bytes
    own = (find("adamw")(learning_rate=rate),)
    chosen = searched(laws, room / MB, level, own=own).best()
    assert chosen is not None and {*chosen.added} == {*added}


def test_activations_are_placed_nowhere_where_the_step_alone_takes_more_than_there_is() -> None:
    laws = Stateful()
    assert searched(laws, 240, Fidelity.MIXED).best() is None
    away = [names for names, _ in laws.asked if {"bf16", "optimizer_offload"} <= {*names}]
    assert away and not any("recompute" in names and "gradient_offload" not in names for names in away)


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [200, 245])
def test_a_set_whose_states_are_known_to_be_too_many_is_not_run(
    megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = searched(Stateful(), megabytes, Fidelity.COMPACT)
    trace, too_many = search._trace, []

    def traced(added: tuple[Technique, ...], size: int) -> Candidate | None:
        looked, lasting = search.looked, search.lasting_bytes(added)
        made = trace(added, size)
        if search.looked > looked and lasting > search.budget.usable:
            too_many.append([label(each) for each in added])
        return made

    monkeypatch.setattr(search, "_trace", traced)
    search.best()
    assert search.looked and not too_many


def test_states_are_known_beside_gradients_elsewhere_and_not_beside_an_optimizer_there() -> None:
    search = searched(Stateful(), 4000)
    kinds = search.asked.prediction.peak_by_kind
    assert search.lasting_bytes((find("gradient_offload")(),)) == kinds["weights"] + kinds["optimizer"] > 0
    assert search.lasting_bytes((find("optimizer_offload")(),)) == 0


class SteppingStates(Stepping, Stateful):
    """Both."""


class Casting(Laws):
    """Whose passes are of few tokens, so that they take most of their time to cast weights that are kept in 32 bits, which a format of 16 spares."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        made = super().law(names, size)
        casts = 1.5 if "bf16" in names else 0.0
        return replace(made, seconds_per_update=made.seconds_per_update + casts, step_seconds=0.01)


def test_passes_over_weights_of_one_format_bound_none_over_those_of_another() -> None:
    chosen = searched(Casting(), 4000, Fidelity.COMPACT, Goal(worth=1.0)).best()
    assert chosen is not None and "pure_bf16" in chosen.added


@pytest.mark.slow
def test_of_an_optimizer_whose_step_takes_too_long_one_set_is_run() -> None:
    laws = SteppingStates()
    searched(laws, 320, Fidelity.COMPACT).best()
    slow = {names for names, _ in laws.asked if {"adamw_4bit", "optimizer_offload"} <= {*names}}
    assert len(slow) == 1


class Heavy(Laws):
    """Whose states take most of the memory."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        kinds = {"weights": 100 * MB, "optimizer": 300 * MB}
        return replace(super().law(names, size), peak_by_kind=kinds)


@pytest.mark.parametrize(("kind", "several"), [("cuda", set()), ("cpu", {*SIZES} - {ROWS, 2})])
def test_what_fits_in_one_pass_and_is_too_slow_is_tried_in_several_on_a_cpu_alone(
    kind: str, several: set[int]
) -> None:
    laws = Heavy()
    laws.machine.type = kind
    searched(laws, 4000, Fidelity.COMPACT).best()
    asked = {size for names, size in laws.asked if {*names} == {"adamw_4bit", "bf16"}}
    assert asked - {ROWS} == several


def test_sizes_that_are_too_slow_by_the_smallest_one_are_not_run_on_a_cpu() -> None:
    laws = Laws(overhead=0.5, cache=1.0)
    laws.machine.type = "cpu"
    search = searched(laws, 4000, Fidelity.FULL)
    search.best()
    seconds = {size: laws.law((), size).seconds_per_update for size in SIZES}
    best, one = min(seconds.values()), seconds[min(SIZES)] / ROWS
    run = {each.micro_batch for each in search.tried if each.techniques == search.asked.techniques}
    assert {size for size in SIZES if one * math.ceil(ROWS / size) < best} < run < {*SIZES}
    assert next(size for size, each in seconds.items() if each == best) in run


class OfKinds(Laws):
    """Whose peaks are told by kind, as all real ones are."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        made = super().law(names, size)
        return replace(
            made, peak_by_kind=max(made.peak_by_phase.values(), key=lambda each: sum(each.values()))
        )


@pytest.mark.parametrize("megabytes", [750, 450])
def test_what_a_micro_batch_takes_at_least_is_no_more_than_it_takes(megabytes: int) -> None:
    laws = OfKinds(overhead=0.1)
    search = searched(laws, megabytes, Fidelity.MIXED)
    search.best()
    in_passes = set()
    for each in search.tried:
        added, names = search._added(each), laws.names_of(each.techniques)
        for size in SIZES:
            truth, seconds = laws.law(names, size), search.least_seconds_in(added, size)
            in_passes.add(seconds > search.least_seconds_in(added, ROWS))
            assert seconds <= truth.seconds_per_update * 1.0001
            assert search.least_bytes_in(added, size) <= truth.reserved_bytes
    assert in_passes == {False, True}, "more passes take longer where that is known"


def test_micro_batches_that_cannot_fit_by_one_pass_are_not_run() -> None:
    laws = OfKinds(overhead=0.1)
    search = replace(searched(laws, 750), may_add=lambda technique: False)
    chosen = search.best()
    assert chosen is not None and chosen.micro_batch == 2
    assert [size for _, size in laws.asked] == [16, 1, 2]


def test_micro_batches_that_were_too_slow_with_fewer_placements_are_not_run() -> None:
    laws = OfKinds(overhead=1.0)
    search = searched(laws, 750)
    chosen = search.best()
    assert chosen is not None
    most = 1.05 * chosen.prediction.seconds_per_update
    plain = laws.law([], 1).seconds_per_update
    assert plain > most, "so is whatever is placed beside it"
    assert not any(size == 1 and "tiled_linear" in names for names, size in laws.asked)


@pytest.mark.parametrize("known", [False, True])
def test_to_take_a_placement_away_saves_what_it_was_seen_to_take_beside_the_same_weights(known: bool) -> None:
    laws = OfKinds()
    search = searched(laws, 100)
    chunked, recompute = (
        next(each for each in search._rungs if label(each) == name) for name in ("chunked_loss", "recompute")
    )
    for added in [(), *[(chunked,)] * known, (chunked, recompute)]:
        search._trace(added, ROWS)
    truth, told = laws.law(["recompute"], ROWS).seconds_per_update, search.least_seconds((recompute,))
    assert (told > 0.95 * truth) == known and told <= truth


class Hidden(OfKinds):
    """Whose recomputation takes no time while activations are copied."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        if {"activation_offload", "recompute"} <= {*names}:
            names = [each for each in names if each != "recompute"]
        return super().law(names, size)


def test_a_placement_that_copies_hide_bounds_no_set_without_them() -> None:
    laws = Hidden()
    search = searched(laws, 100)
    chunked, recompute, elsewhere = (
        next(each for each in search._rungs if label(each) == name)
        for name in ("chunked_loss", "recompute", "activation_offload")
    )
    for added in [(elsewhere,), (elsewhere, recompute), (chunked, recompute)]:
        search._trace(added, ROWS)
    assert search.least_seconds((chunked,)) <= laws.law(["chunked_loss"], ROWS).seconds_per_update


def test_of_adapters_beside_weights_in_several_formats_the_leanest_is_walked_first() -> None:
    laws = OfKinds(overhead=0.1)
    searched(laws, 200, Fidelity.QUANTIZED).best()
    placed = {label(each) for each in placements(laws.machine.device)}
    frozen = [(names, size) for names, size in laws.asked if "nf4" in names]
    alone = [names for names, size in frozen if size == ROWS and not placed & {*names}]
    needs = {names: laws.law(names, ROWS).reserved_bytes for names in alone}
    leanest = min(needs, key=lambda names: needs[names])
    assert leanest != alone[0], "it is not the first of the ladder"
    first = next(names for names, size in frozen if size < ROWS)
    assert {*leanest} <= {*first}


class Copied(Laws):
    """Whose copies of activations take most of the time, unless blocks compute some of them again; to compute all of them takes longer still."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        made = super().law(names, size)
        all_again, some_again = "recompute" in names, SPARSE in names
        more = 0.1 if some_again else 5.0 if all_again or "activation_offload" in names else 0.0
        return replace(made, seconds_per_update=made.seconds_per_update + more)


def test_activations_elsewhere_are_tried_together_with_recomputation_where_neither_alone_is_faster() -> None:
    laws, both = Copied(overhead=2.0), ["activation_offload", SPARSE]
    room = laws.law(both, ROWS).reserved_bytes / MB + 10
    search = replace(
        searched(laws, room), may_add=lambda each: each.card.name in ("activation_offload", "recompute")
    )
    chosen = search.best()
    assert chosen is not None and chosen.micro_batch == ROWS
    assert {label(each) for each in chosen.techniques} > {*both}


class Torn(Laws):
    """Whose blocks that are computed again leave memory torn, more where all of them is; an optimizer on the host takes long."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        made, away = super().law(names, size), "optimizer_offload" in names
        need = 500 if away else 800 if "recompute" in names else 780 if SPARSE in names else 2000
        seconds = made.seconds_per_update + (20.0 if away else 0.0)
        return replace(made, reserved_bytes=need * MB, seconds_per_update=seconds)


def test_what_keeps_some_is_tried_where_all_that_is_computed_again_misses_by_little() -> None:
    names = ("chunked_loss", "recompute", "optimizer_offload")
    chosen = replace(searched(Torn(), 790), may_add=lambda each: each.card.name in names).best()
    assert chosen is not None and SPARSE in {label(each) for each in chosen.techniques}


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
    search = searched(laws, 4000, Fidelity.MIXED)
    search.deadline = 0.0
    chosen = search.best()
    assert chosen is not None and chosen.fits
    assert not search.complete


def test_what_fits_is_found_though_the_time_is_over_before_anything_else_was_looked_at() -> None:
    laws = Laws()
    request = Request(Plan(), Budget(700 * MB, margin=0.0), seconds=1e-9)
    outcome = look_for(laws, request)  # type: ignore[arg-type]
    assert outcome.choice is not None and outcome.choice.fits and outcome.search.looked <= 2
    assert "more was to be looked at: give it more --seconds" in why(outcome.choice, outcome.search)[-1]


def test_a_plan_beside_which_the_time_let_nothing_be_looked_at_says_so() -> None:
    laws = Laws()
    request = Request(Plan(), Budget(4000 * MB, margin=0.0, fidelity=Fidelity.MIXED), seconds=1e-9)
    outcome = look_for(laws, request)  # type: ignore[arg-type]
    assert outcome.choice is not None and not outcome.search.looked
    assert why(outcome.choice, outcome.search)[-1].endswith("some may be better: give it more --seconds.")


class Unhurried(Laws):
    """Whose check of a choice takes three runs, each of which takes as long as `clock` says, and those of a search too."""

    clock: SimpleNamespace
    checked: list[int]

    def predict(
        self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False, late: Late = never
    ) -> Prediction:
        for number in range(3 if self.checking else 1):
            if late():
                raise OutOfTime
            self.clock.now += self.clock.seconds
            self.checked.append(number)
        return super().predict(plan, techniques)

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> Any:
        sized = super().by_size(plan, techniques)

        def traced(size: int) -> Prediction:
            self.checking = False
            try:
                found: Prediction = sized.traced(size)
                return found
            finally:
                self.checking = True

        return SimpleNamespace(traced=traced, between=sized.between)


def unhurried(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Unhurried:
    laws = Unhurried()
    laws.clock, laws.checked, laws.checking = SimpleNamespace(now=0.0, seconds=seconds), [], True
    monkeypatch.setattr("time.monotonic", lambda: laws.clock.now)
    return laws


def test_a_search_that_is_bounded_ends_while_there_is_time_to_check_its_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laws = unhurried(1.0, monkeypatch)
    request = Request(Plan(), Budget(900 * MB, margin=0.0, fidelity=Fidelity.MIXED), seconds=12.0)
    outcome = look_for(laws, request)  # type: ignore[arg-type]
    assert outcome.choice is not None and not outcome.search.unchecked
    assert laws.clock.now <= 12.0 and not outcome.search.complete
    assert "give it more --seconds" in why(outcome.choice, outcome.search)[-1]


def test_a_choice_that_there_was_no_time_to_check_is_given_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laws = unhurried(15.0, monkeypatch)
    request = Request(Plan(), Budget(900 * MB, margin=0.0, fidelity=Fidelity.MIXED), seconds=1.0)
    outcome = look_for(laws, request)  # type: ignore[arg-type]
    assert outcome.choice is not None and outcome.choice.fits and outcome.search.unchecked
    machine = Machine(find_device("a100-80"), find_device("cpu"))
    laws.subject.assumed = ""
    assert UNCHECKED in answer_of(outcome, machine, {}).why


def test_where_the_time_is_over_the_devices_that_are_named_are_for_the_level_that_was_looked_at() -> None:
    search = searched(Laws(), 50, Fidelity.QUANTIZED)
    sentences = why_not(search, {"full": 20 * 2**30, "compact": 10 * 2**30})
    assert any(each.startswith("At compact it should fit on --device") for each in sentences)
    assert sentences[0].startswith("The recipe's own plan does not fit in 50 MiB")
    assert why_not(search, {})[0].endswith("no other was looked at. It takes 2.05 GiB.")


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


@dataclass
class Staying(Streamed):
    """A block that stays takes 5 MB, and saves a twentieth of the time until all copies are hidden."""

    hidden: int = 12

    def predict(
        self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False, late: Late = never
    ) -> Prediction:
        super().predict(plan, techniques)
        names = [label(each) for each in keeping(techniques, 0)]
        return self.staying(names, int(plan.micro_batch or ROWS), staying(techniques))

    def staying(self, names: Sequence[str], size: int, blocks: int) -> Prediction:
        one = self.law(names, size)
        return replace(
            one,
            reserved_bytes=one.reserved_bytes + 5 * blocks * MB,
            seconds_per_update=one.seconds_per_update * (1 - min(blocks, self.hidden) / 20),
        )


@pytest.mark.parametrize(("hidden", "room", "stays"), [(12, 17, 3), (12, 400, 10), (2, 17, 2), (12, 4, 0)])
def test_as_many_blocks_stay_on_the_device_as_there_is_room_for_and_copies_that_are_waited_for(
    hidden: int, room: int, stays: int
) -> None:
    laws, added = Staying(hidden=hidden), (find("lora")(), find("weight_streaming")())
    whole = laws.law(["lora", "weight_streaming"], ROWS)
    search = searched(laws, whole.reserved_bytes / MB + room, Fidelity.ADAPTERS)
    assert search._look(added)
    fitting = [each for each in search.tried if each.fits and each.micro_batch == ROWS]
    chosen = min(fitting, key=lambda each: each.prediction.seconds_per_update)
    assert staying(chosen.techniques) == stays
    assert {*search._added(chosen)} == {*added}, (
        "what differs from it by a rung is looked for as from any other"
    )
    assert search.confirm(lambda: chosen) == chosen


class FullHost(Streamed):
    """Whose weights the host has no room for either."""

    def law(self, names: Sequence[str], size: int) -> Prediction:
        found = super().law(names, size)
        return replace(found, host_peak_bytes=500 * MB if "weight_streaming" in names else 0)


def test_states_of_adapters_are_placed_nowhere_where_they_are_next_to_nothing() -> None:
    laws = Streamed()
    searched(laws, 150, Fidelity.ADAPTERS).best()
    adapted = [names for names, _ in laws.asked if "lora" in names]
    assert any("recompute" in names for names in adapted)
    assert not any({"optimizer_offload", "optimizer_in_backward"} & {*names} for names in adapted)


def test_where_the_host_has_no_room_for_weights_activations_are_not_sent_there_too() -> None:
    laws = FullHost()
    search = searched(laws, 130, Fidelity.ADAPTERS)
    search.budget = replace(search.budget, host_bytes=400 * MB)
    assert search.best() is None
    streamed = {names for names, _ in laws.asked if "weight_streaming" in names}
    assert streamed and not any("activation_offload" in names for names in streamed)


def test_the_search_says_how_many_plans_there_are_and_the_best_so_far() -> None:
    said: list[tuple[int, int, Candidate | None, Fidelity | None]] = []
    search = searched(Laws(), 900)
    search.progress = lambda *progress: said.append(progress)
    chosen = search.best()
    assert said and said[-1][1] == search.count > 100
    assert [looked for looked, *_ in said] == sorted(looked for looked, *_ in said)
    assert said[-1][2:] == (chosen, None)


def test_a_search_of_one_level_says_which_and_counts_the_plans_of_that_level() -> None:
    said: list[Fidelity | None] = []
    search = searched(Laws(), 900)
    search.progress = lambda *progress: said.append(progress[-1])
    by_level = [search.among(level) for level in Fidelity]
    by_level[Fidelity.MIXED].best()
    assert {*said} == {Fidelity.MIXED}
    assert sum(each.count for each in by_level) == search.count
    assert all(each.count for each in by_level)
