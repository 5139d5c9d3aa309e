"""How much longer does the choice take than the best of a table of plans, each of which was predicted whole and by itself?

    python benchmarks/planner/regret.py                 all pairs; what is in the results already is not made again
    python benchmarks/planner/regret.py --anew          choices anew, beside the tables that are there
    python benchmarks/planner/regret.py --tables bert   tables and choices anew, of the pairs with this in their names

A pair is a small model and a device of `regret_pairs.py`. Its table has sets of techniques drawn by a seed, as many of each level of
fidelity, from all that go together, in each micro-batch that is the window divided by a power of two. Each plan is run whole on fake
tensors, with all its layers and micro-batches: nothing is carried on from other plans, which is what the search does. Budgets are
drawn by the seed so that many plans of several levels fit, the median of them well above the fastest; and one at each finer level.
*Regret* is by how much more time the choice takes than the plan that the same rule takes of the table and of all choices that were ever
made for the pair, all as predicted whole; where a choice is coarser than `mixed`, of the finer plan that it had to be worth it beside too,
which may be in a micro-batch that no table has. *Without the ladder* a search begins at the recipe's own plan and tries neighbours alone.
*Bounds* are those by which a search leaves plans out: the most that one is of what a plan of the table takes, in time and in memory. Each
pair runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, starmap
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from regret_pairs import MODELS, PAIRS  # noqa: E402
from result_lines import measure, read, write  # noqa: E402

from snugfit.core.batch import Batch  # noqa: E402
from snugfit.core.job import Job, Plan  # noqa: E402
from snugfit.core.technique import Family, Fidelity, Technique  # noqa: E402
from snugfit.errors import PlanConflict  # noqa: E402
from snugfit.kit.skeleton import skeleton  # noqa: E402
from snugfit.planner.answers.answer import Prediction  # noqa: E402
from snugfit.planner.choice import ladder  # noqa: E402
from snugfit.planner.choice.candidate import Budget, Candidate, margin_on  # noqa: E402
from snugfit.planner.choice.goals import Goal  # noqa: E402
from snugfit.planner.choice.rungs import (  # noqa: E402
    Techniques,
    coarser,
    freezes,
    is_for_frozen,
    label,
    labels_of_added,
    placements,
    together,
)
from snugfit.planner.choice.search import Search  # noqa: E402
from snugfit.planner.devices.data_sheets import LINKS, SHEETS  # noqa: E402
from snugfit.planner.devices.device import Device, Link, Machine  # noqa: E402
from snugfit.planner.plan import Outcome, Request, look_for  # noqa: E402
from snugfit.planner.prediction.peak_and_time import Run  # noqa: E402
from snugfit.planner.prediction.plan_needs import Planner  # noqa: E402
from snugfit.planner.target import Target, machine_of  # noqa: E402
from snugfit.planner.trace.dry_run import Subject  # noqa: E402
from snugfit.techniques import find  # noqa: E402

TABLES, CHOICES = HERE / "results" / "regret-tables.jsonl", HERE / "results" / "regret-choices.jsonl"
PAGE = HERE / "regret.md"

SETS = 5
"""Sets of techniques of each level of fidelity that are drawn at first; three times as many where a window is never split."""

ENOUGH, ROUNDS = 18, 5
"""Plans of each level, up to which more sets are drawn where some cannot be run, and how often."""

SIZES = 3
"""Micro-batches: the window, a half and a quarter of it."""

FIT, LEVELS, SPREAD = 20, 3, 1.3
"""Plans that fit each budget, the levels that they are of, and times the fastest that the median of them takes, all at least."""

QUANTILES = ((0.0, 0.25), (0.25, 0.55), (0.55, 0.85))
"""Of the peaks above the smallest `FIT` of a level, between which a budget is drawn; DRAWS times at most."""

DRAWS = 20

LIMIT = 0.05

_CPU = Device(
    name="a CPU of sixteen cores",
    kind="cpu",
    memory_bytes=64 * 2**30,
    flops={
        "float32": 1.5e12,
        "tf32": 1.5e12,
        "float64": 0.75e12,
        "bfloat16": 3e12,
        "float16": 0.75e12,
        "int8": 1.5e12,
    },
    bandwidth=96e9,
    efficiency={"matmul": 0.7, "convolution": 0.6, "attention": 0.25, "other": 0.1},
    reach=0.8,
    launch=0.0,
    host=5e-6,
    view=3e-6,
    mode=1e-5,
    hook=5e-6,
    update=1e-4,
    reserved=0,
    host_link=Link("memory", LINKS["memory"][0] * 1e9, 0.0),
    peer_link=Link("memory", LINKS["memory"][0] * 1e9, 0.0),
)


class Remembering(Planner):
    """A planner whose runs are kept, so that several searches of one model make each once; what they find is the same."""

    def run_of(self, plan: Plan, techniques: Sequence[Technique], rough: bool = False) -> tuple[Run, bool]:
        runs: dict[Any, Any] = self.__dict__.setdefault("_kept", {})
        key = (plan.micro_batch, tuple(techniques), rough)
        if key not in runs:
            try:
                runs[key] = super().run_of(plan, techniques, rough)
            except Exception as error:  # noqa: BLE001
                runs[key] = error
        if isinstance(runs[key], Exception):
            raise runs[key]
        return runs[key]


@dataclass(frozen=True)
class Pair:
    """A model and a device."""

    model: str
    device: str

    @property
    def name(self) -> str:
        return f"{self.model}, {self.device}"

    @property
    def random(self) -> random.Random:
        return random.Random(self.name)

    @cached_property
    def own(self) -> Techniques:
        return tuple(find(name)() for name in MODELS[self.model].own)

    @cached_property
    def subject(self) -> Subject:
        made = MODELS[self.model]
        window = Batch.of(made.data())
        bare = skeleton(made.make())
        job = Job.of(global_batch=window.rows, updates=100)
        return Subject(lambda: skeleton(bare), window, job, 100 * window.rows, self.own, made.loss)

    @contextmanager
    def machine(self) -> Iterator[Machine]:
        if self.device == "cpu":
            yield Machine(_CPU, _CPU)
            return
        with machine_of(Target(device=self.device)) as machine:
            yield machine

    def rungs(self, device: Device) -> list[Technique]:
        """Return all that may be added, but what is not trained at that rate on the device."""
        rungs = [
            *placements(device),
            *(rung for level in Fidelity if level for rung in coarser(level, device)),
        ]
        return [each for each in rungs if _goes(self.own, (each,), frozen=True)]

    def budget(self, memory: int, level: Fidelity, kind: str) -> Budget:
        host = None if kind == "cpu" else int(SHEETS[self.device].host * 2**30)
        return Budget(memory, host, level, margin_on(kind))


def _goes(own: Techniques, added: Sequence[Technique], frozen: bool = False) -> bool:
    try:
        techniques = together(own, added)
    except PlanConflict:
        return False
    return frozen or freezes(techniques) or not any(map(is_for_frozen, techniques))


# ----------------------------------------------------------------------------------------------------------- the table


@dataclass
class Draw:
    """Sets of techniques of a pair, drawn by its seed, few rungs as likely as many; none of them twice."""

    pair: Pair
    device: Device

    def __post_init__(self) -> None:
        rungs = self.pair.rungs(self.device)
        self._placements = [each for each in rungs if each.card.family is Family.PLACEMENT]
        self._formats = [
            added
            for count in range(4)
            for added in combinations([each for each in rungs if each not in self._placements], count)
            if _goes(self.pair.own, added)
        ]
        self._random = self.pair.random
        self._drawn: list[Techniques] = [()]

    def sets(self, level: Fidelity, count: int) -> list[Techniques]:
        """Return so many more sets of a level, or as many as are found."""
        formats = [
            each for each in self._formats if max((one.card.fidelity for one in each), default=0) == level
        ]
        made: list[Techniques] = []
        for _ in range(20 * count):
            if not formats or len(made) == count:
                break
            format = self._random.choice(formats)
            size = self._random.choice((0, 0, 1, 1, 2, 2, 3))
            places = [
                each
                for each in combinations(self._placements, size)
                if _goes(self.pair.own, (*format, *each))
            ]
            if places and (added := (*format, *self._random.choice(places))) not in [*made, *self._drawn]:
                made.append(added)
        self._drawn += made
        return made


def sizes_of(pair: Pair) -> list[int]:
    rows = pair.subject.window.rows
    return [rows >> halved for halved in range(SIZES) if rows >> halved]


def table(pair: Pair, begun: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the table of a pair, each plan run whole.

    Args:
        begun: a table with fewer plans, which are not run again.
    """
    start = time.process_time()
    begun = {"seconds": 0.0, "refused": {}, "plans": [], "chosen": [], **(begun or {})}
    there = {(tuple(row[0]), row[1]): row for row in begun["plans"]}
    plans: list[list[Any]] = []
    reasons: dict[str, str] = {}
    with pair.machine() as machine:
        planner = Planner(pair.subject, machine, whole=True)
        sizes = [pair.subject.window.rows] if planner.fixed_micro_batch else sizes_of(pair)

        def add(added: Techniques) -> int:
            names = [label(each) for each in added]
            name = " + ".join(names)
            for place, size in enumerate(sizes):
                row = there.get((tuple(names), size))
                if row is None and name in begun["refused"]:
                    reasons[name] = begun["refused"][name]
                    return place
                try:
                    plans.append(row or _row(names, size, _predicted(planner, machine, added, size)))
                except Exception as error:  # noqa: BLE001
                    reasons[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                    return place
            return len(sizes)

        draw = Draw(pair, machine.device)
        add(())
        many = SETS * SIZES // len(sizes)
        lacking = dict.fromkeys(Fidelity, ENOUGH)
        for turn in range(ROUNDS):
            for level in Fidelity:
                wanted = math.ceil(lacking[level] / len(sizes)) if turn else many
                lacking[level] -= sum(map(add, draw.sets(level, wanted)))
    spent = begun["seconds"] + time.process_time() - start
    summary = {"pair": pair.name, "seconds": round(spent, 1), "refused": reasons, "plans": plans}
    return {**summary, "chosen": begun["chosen"]}


def _predicted(planner: Planner, machine: Machine, added: Techniques, size: int) -> Prediction:
    plan = Plan(micro_batch=size, device=machine.type)
    return planner.predict(plan, together(planner.subject.techniques, added))


def _row(names: Sequence[str], size: int, prediction: Prediction) -> list[Any]:
    return [
        list(names),
        size,
        prediction.seconds_per_update,
        prediction.most_bytes,
        prediction.host_peak_bytes,
    ]


@dataclass
class Table:
    """The plans of a pair, as candidates: those that were drawn; and those that were chosen for some budget, or stood beside a choice."""

    pair: Pair
    machine: Machine
    rows: list[list[Any]]
    choice_rows: list[list[Any]]

    @cached_property
    def _by_name(self) -> Mapping[str, Technique]:
        return {label(each): each for each in self.pair.rungs(self.machine.device)}

    def candidates(self, budget: Budget) -> list[Candidate]:
        """Return those of the levels that are allowed, of those that were drawn."""
        return self._allowed(self.rows, budget)

    def all_known(self, budget: Budget) -> list[Candidate]:
        return self._allowed([*self.rows, *self.choice_rows], budget)

    def _allowed(self, rows: Sequence[list[Any]], budget: Budget) -> list[Candidate]:
        made = [self._candidate(row, budget) for row in rows]
        return [each for each in made if each.level <= budget.fidelity]

    def _candidate(self, row: list[Any], budget: Budget) -> Candidate:
        names, size, seconds, memory, host = row
        techniques = together(self.pair.own, [self._by_name[name] for name in names])
        prediction = Prediction(memory, {}, {}, memory, host, seconds, None, None, 0.0, 0, 0.0, {})
        return Candidate(
            techniques, size, labels_of_added(techniques, self.pair.own), prediction, budget.holds(prediction)
        )

    def bounds(self, search: Search) -> dict[str, float]:
        """Return what the bounds of a search are at most of what a plan takes: in time, and in memory."""
        time = memory = 0.0
        for names, size, seconds, most, _ in self.rows:
            added = tuple(self._by_name[name] for name in names)
            time = max(
                time,
                *(
                    each / seconds
                    for each in (search.least_seconds(added), search.least_seconds_in(added, size))
                ),
            )
            memory = max(
                memory,
                *(each / most for each in (search.lasting_bytes(added), search.least_bytes_in(added, size))),
            )
        return {"seconds": round(time, 4), "bytes": round(memory, 4)}

    def budgets(self) -> Iterator[Budget]:
        """Draw one for each quantile of each level that allows enough levels, and one of each finer level."""
        drawn, kind = self.pair.random, self.machine.device.kind
        everything = self.candidates(self.pair.budget(0, Fidelity.QUANTIZED, kind))
        there = sorted({each.level for each in everything})
        for place, level in enumerate(there):
            peaks = sorted(each.prediction.most_bytes for each in everything if each.level <= level)
            finer = place + 1 < LEVELS
            first = 0 if finer else min(FIT, len(peaks) - 1)
            for low, high in QUANTILES[1:2] if finer else QUANTILES:
                made = (
                    self._budget(peaks[first:], drawn.uniform(low, high), level, kind) for _ in range(DRAWS)
                )
                budget = next((each for each in made if finer or self.is_hard(each)), None)
                if budget is not None:
                    yield budget

    def _budget(self, peaks: Sequence[int], quantile: float, level: Fidelity, kind: str) -> Budget:
        place = quantile * (len(peaks) - 1)
        below, above = peaks[int(place)], peaks[math.ceil(place)]
        peak = below + (above - below) * (place % 1)
        return self.pair.budget(int(peak / (1 - margin_on(kind))) + 2, level, kind)

    def fitting(self, budget: Budget) -> list[Candidate]:
        return [each for each in self.candidates(budget) if each.fits]

    def is_hard(self, budget: Budget) -> bool:
        """Return whether enough plans fit a budget, of enough levels, and most are slow beside the fastest."""
        plans = self.fitting(budget)
        levels = {each.level for each in plans}
        return len(plans) >= FIT and len(levels) >= LEVELS and median_over_fastest(plans) >= SPREAD


def median_over_fastest(plans: Sequence[Candidate]) -> float:
    seconds = [each.prediction.seconds_per_update for each in plans]
    return statistics.median(seconds) / min(seconds)


# --------------------------------------------------------------------------------------------------------- the choices


@dataclass(frozen=True)
class Choice:
    """The result of a search for a budget, and the choice predicted whole; `rows` are of a table: the choice, and the finer plan beside it."""

    budget: Budget
    outcome: Outcome
    seconds: float
    exact: Prediction | None
    rows: tuple[list[Any], ...]


def choices(pair: Pair, made: dict[str, Any], only: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the search's choice for each budget of a pair, beside its table, which takes in all choices.

    Args:
        only: the places of the budgets that are looked at; all by default.
    """
    with pair.machine() as machine:
        there = Table(pair, machine, made["plans"], made.setdefault("chosen", []))
        searching = Remembering(pair.subject, machine)
        whole = Planner(pair.subject, machine, whole=True)
        pairs = []
        for place, budget in enumerate(there.budgets()):
            if only is None or place in only:
                with_it = choice_of(searching, whole, budget)
                with without_ladder():
                    pairs.append((with_it, choice_of(searching, whole, budget)))
        for row in (row for both in pairs for each in both for row in each.rows):
            # in the place of what an earlier planner said of the same plan
            there.choice_rows[:] = [other for other in there.choice_rows if other[:2] != row[:2]] + [row]
        return [comparison(there, *both) for both in pairs]


@contextmanager
def without_ladder() -> Iterator[None]:
    """Temporarily let a search begin at the recipe's own plan."""
    with mock.patch.multiple(ladder, FORMATS=(), PLACEMENTS=((),)):
        yield


def choice_of(searching: Planner, whole: Planner, budget: Budget) -> Choice:
    began = time.process_time()
    device = searching.machine.type
    outcome = look_for(searching, Request(Plan(device=device), budget))
    spent, one = time.process_time() - began, outcome.choice
    exact = [
        (each, whole.predict(Plan(micro_batch=each.micro_batch, device=device), each.techniques))
        for each in (one, _finer(outcome))
        if each is not None
    ]
    rows = tuple(_row(each.added, each.micro_batch, prediction) for each, prediction in exact)
    return Choice(budget, outcome, spent, exact[0][1] if exact else None, rows)


def _finer(outcome: Outcome) -> Candidate | None:
    """Return the plan that a choice coarser than `mixed` had to be worth it beside; None where it had to beside none."""
    one, tried = outcome.choice, outcome.search.tried
    if one is None or one.level <= Fidelity.MIXED:
        return None
    return Goal().choose(each for each in tried if each.level < one.level)


def comparison(there: Table, choice: Choice, bare: Choice) -> dict[str, Any]:
    """Return a choice, and what it is without the ladder, beside the best of all plans of its pair that are known."""
    budget, outcome = choice.budget, choice.outcome
    fitting = there.fitting(budget)
    best = Goal().choose(there.all_known(budget))
    row: dict[str, Any] = {
        "pair": there.pair.name,
        "level": budget.fidelity.label,
        "memory_bytes": budget.memory_bytes,
        "fitting": len(fitting),
        "levels": len({each.level for each in fitting}),
        "hard": there.is_hard(budget),
        "looked": outcome.search.looked,
        "complete": outcome.search.complete,
        "count": outcome.search.count,
        "seconds": round(choice.seconds, 2),
        "bounds": there.bounds(outcome.search),
        **_regret_of(best, choice),
        "without_ladder": {**_regret_of(best, bare), "looked": bare.outcome.search.looked},
        "best": None,
    }
    if fitting:
        row["median_over_fastest"] = round(median_over_fastest(fitting), 2)
    if best is not None:
        row["best"] = [
            best.rung,
            best.level.label,
            best.prediction.seconds_per_update,
            best.prediction.most_bytes,
        ]
    return row


def _regret_of(best: Candidate | None, choice: Choice) -> dict[str, Any]:
    """Return a choice as predicted whole, and its regret beside the best plan."""
    one, exact = choice.outcome.choice, choice.exact
    if one is None or exact is None:
        return {"chosen": None, "regret": None if best is None else float("inf")}
    plan = [one.rung, one.level.label, exact.seconds_per_update, exact.most_bytes]
    if best is None or not choice.budget.holds(exact):
        return {"chosen": plan, "regret": float("inf")}
    regret = exact.seconds_per_update / best.prediction.seconds_per_update - 1
    return {"chosen": plan, "regret": regret, "coarser": one.level > max(best.level, Fidelity.MIXED)}


# --------------------------------------------------------------------------------------------------------- the command


def failing(one: Mapping[str, Any]) -> bool:
    """Return whether a choice is worse than may be."""
    return (one["regret"] is not None and one["regret"] > LIMIT) or bool(one.get("coarser"))


def page(tables: Sequence[Mapping[str, Any]], choices: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "# The choice beside tables of plans",
        "",
        "By `python benchmarks/planner/regret.py`. Each plan of a table is predicted whole and by itself; *regret* is by how much more time the",
        f"choice takes than what the same rule takes of the table and of all choices that were made for the pair. Budgets are drawn so that at least {FIT} plans of at least {LEVELS} levels fit and",
        f"the median of them takes at least {SPREAD} times as long as the fastest: three for each level that allows so many. One more is drawn at each",
        "finer level (*finer*), where fewer plans and levels are allowed. *Fit*, *levels* and *median* are the least of the former. Seconds are of",
        "one processor.",
        "",
        "| model, device | plans | budgets | finer | fit | levels | median over fastest | regret, median | worst | plans looked at, median | of | a search, s "
        "| without the ladder: worst | looked at |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in tables:
        mine = [each for each in choices if each["pair"] == one["pair"]]
        hard = [each for each in mine if each["hard"]]
        if not hard:
            continue
        regrets = [each["regret"] for each in mine if each["regret"] is not None]
        lines.append(
            f"| {one['pair']} | {len(one['plans'])} | {len(hard)} | {len(mine) - len(hard)} | {min(each['fitting'] for each in hard)} | "
            f"{min(each['levels'] for each in hard)} | {min(each['median_over_fastest'] for each in hard):.2f} | "
            f"{statistics.median(regrets):.1%} | {max(regrets):.1%} | "
            f"{statistics.median(each['looked'] for each in mine):.0f} | {mine[0]['count']:,} | "
            f"{statistics.median(each['seconds'] for each in mine):.1f} | {_without(mine)} |"
        )
    regrets = [each["regret"] for each in choices if each["regret"] is not None]
    worse = [each for each in choices if failing(each)]
    if regrets:
        lines += [
            "",
            f"In all {len(choices)} choices: regret {statistics.median(regrets):.1%} in the median, {max(regrets):.1%} at most; "
            f"{len(worse)} above {LIMIT:.0%}.",
        ]
    both = [each for each in choices if "without_ladder" in each]
    if both:
        bare = [each["without_ladder"] for each in both]
        lost = [each for each in bare if each["regret"] is not None and each["regret"] > LIMIT]
        without, with_it = (statistics.median(each["looked"] for each in rows) for rows in (bare, both))
        time, memory = (max(each["bounds"][what] for each in both) for what in ("seconds", "bytes"))
        lines += [
            "",
            f"Without the ladder {len(lost)} of {len(bare)} choices are above {LIMIT:.0%}, and {without:.0f} plans are looked at in the median in place of "
            f"{with_it:.0f}. Of what a plan of the tables takes, a bound is at most {time:.1%} in time and {memory:.1%} in memory.",
        ]
    for each in worse:
        lines.append(f"- {each['pair']}, {each['level']}: {each['chosen']} beside {each['best']}")
    return "\n".join([*lines, ""])


def _without(choices: Sequence[Mapping[str, Any]]) -> str:
    """Return the worst regret and the plans looked at without the ladder, as cells of a table."""
    bare = [each["without_ladder"] for each in choices if "without_ladder" in each]
    if not bare:
        return " | "
    worst = max(each["regret"] for each in bare if each["regret"] is not None)
    text = "nothing found" if worst == float("inf") else f"{worst:.1%}"
    return f"{text} | {statistics.median(each['looked'] for each in bare):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--anew", action="store_true", help="choices anew")
    parser.add_argument("--tables", action="store_true", help="tables and choices anew")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in this process, and nothing is written
    parser.add_argument("--budget", type=int, action="append", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        pair = next(each for each in starmap(Pair, PAIRS) if each.name == asked.one)
        known = {each["pair"]: each for each in read(TABLES)}.get(pair.name)
        made = known if known is not None and asked.budget else table(pair, None if asked.tables else known)
        rows = choices(pair, made, asked.budget)
        print("\n" + json.dumps({"table": made, "choices": rows}))
        return
    for pair in starmap(Pair, PAIRS):
        if asked.names and not any(name in pair.name for name in asked.names):
            continue
        if not (asked.anew or asked.tables) and pair.name in {each["pair"] for each in read(CHOICES)}:
            continue
        made = measure(pair.name, __file__, "--one", pair.name, *(["--tables"] if asked.tables else []))
        if made is None:
            continue
        for path, new in ((TABLES, [made["table"]]), (CHOICES, made["choices"])):
            lines = [*(each for each in read(path) if each["pair"] != pair.name), *new]
            write(path, lines, "pair", [each.name for each in starmap(Pair, PAIRS)])
        PAGE.write_text(page(read(TABLES), read(CHOICES)))
        print(f"{pair.name}: {len(made['table']['plans'])} plans in {made['table']['seconds']} s", flush=True)
        for each in made["choices"]:
            mark = "  WORSE" if failing(each) else ""
            print(
                f"  {each['level']} {each['memory_bytes'] / 2**30:.2f} GiB: {each['regret']} of {each['fitting']}, {each['looked']} "
                f"looked, {each['seconds']} s: {each['chosen']} | {each['best']}{mark}",
                flush=True,
            )


if __name__ == "__main__":
    main()
