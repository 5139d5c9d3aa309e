"""How much time does the planner's choice give away? It is run, and so is every other plan that it could have chosen.

    python benchmarks/planner/choice.py                        all pairs, some minutes on two cores; writes results/ and README.md
    python benchmarks/planner/choice.py --only t5 llama:0.85   those of one model, and one of another, anew; the others stay as measured

A pair is a model and a cap on the bytes that updates, and the delivery of the model, which merges adapters, may have allocated at a time,
as a share of what plain training of the whole window takes. The planner gets the cap as a budget: it counts what a process takes, so a process's baseline is added. What it
leaves free is its own matter: where it takes a prediction for exact, nothing. This CPU is calibrated first (`snugfit plan --calibrate`).

*Every plan*: all sub-sets of the rungs that the search may use and that save anything on this model, times all micro-batches. The peak
of each is of the profiler's allocation events. Those that stay under the cap are run once, and those among them that come near the fastest
again, in turns with the choice; what is compared are medians. Times are those of the processor, of all threads, so that what else runs
on the machine counts for less; `load` is how many processes wanted to run as a pair began. A choice is at the finest level of precision
at which any plan fits, and is compared with the plans of that level. Where adapters are allowed the recipe names float32, which so stays: 16 bits would take
their place here, as all weights are there whole before they are quantised. Rivals beside adapters have the rungs that the field uses (`FIELD`).
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from cases import MODELS, Case  # noqa: E402
from common import put_on_page, write_result  # noqa: E402
from memory import allocated_peak  # noqa: E402

from snugfit.core.batch import Batch  # noqa: E402
from snugfit.core.job import Plan  # noqa: E402
from snugfit.core.selection import check  # noqa: E402
from snugfit.core.technique import Family, Fidelity, Technique  # noqa: E402
from snugfit.errors import SnugfitError  # noqa: E402
from snugfit.kit.mapped_tensors import making_in_files  # noqa: E402
from snugfit.planner.answers.answer import Answer  # noqa: E402
from snugfit.planner.calibration.calibrate import calibrate  # noqa: E402
from snugfit.planner.choice.candidate import Budget  # noqa: E402
from snugfit.planner.choice.rungs import freezes, is_for_frozen  # noqa: E402
from snugfit.planner.devices.device import BASELINE, Device, Machine  # noqa: E402
from snugfit.planner.plan import Request, make_plan  # noqa: E402
from snugfit.planner.prediction.plan_needs import Planner  # noqa: E402
from snugfit.planner.trace.dry_run import Subject  # noqa: E402
from snugfit.step.build import Material, make_step  # noqa: E402
from snugfit.step.micro_batch_sizes import sizes  # noqa: E402
from snugfit.step.step import Step  # noqa: E402
from snugfit.system.malloc import resident_bytes, tune_malloc  # noqa: E402
from snugfit.techniques import discover, find  # noqa: E402

PAIRS = (
    # the model, the cap as a share of the plain peak, and the coarsest precision
    ("mlp", 1.0, "full"),
    ("mixtral", 0.7, "full"),
    ("resnet", 0.95, "full"),
    ("vit", 0.7, "full"),
    ("bert", 0.8, "full"),
    ("bert", 0.55, "compact"),
    ("bert", 0.3, "quantized"),
    ("t5", 0.75, "full"),
    ("gpt2", 0.7, "full"),
    ("gpt2", 0.45, "compact"),
    ("gpt2", 0.3, "adapters"),
    ("llama", 0.85, "full"),
    ("llama", 0.6, "full"),
    ("llama", 0.5, "compact"),
    ("llama", 0.36, "adapters"),
    ("llama", 0.26, "quantized"),
)
FIELD = (
    *("lora", "nf4", "int8"),
    *("adamw_8bit", "recompute", "chunked_loss", "activation_offload"),
)
"""What the field puts beside adapters that leaves float32 as it is: all sets of more would be thousands of runs."""

REGRET = 0.10
"""Of the time of the best plan that a choice may take more, at most."""

NEAR = 1.25
"""Times the fastest run, up to which a plan is run again."""

NOTICED = 0.99
"""A rung that leaves more than this of the peak at every size saves nothing."""

SCALE_HALVINGS = 14
"""Updates that may be refused as the scale of float16 is too high: it halves, from 65,536."""

TURNS = 9

SECONDS = 300.0
"""For a search: more than it takes where other work runs beside it."""


@dataclass
class Tried:
    """A plan that was run: its peak, and the seconds of its updates."""

    techniques: tuple[Technique, ...]
    micro_batch: int
    peak_bytes: int
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        words = [_words(each) for each in self.techniques if each.card.name != "adamw"]
        return " + ".join([*words, f"micro-batch {self.micro_batch}"])


def _level(techniques: Sequence[Technique]) -> Fidelity:
    return max(each.card.fidelity for each in techniques)


def _is_legal(techniques: Sequence[Technique]) -> bool:
    """Return whether a search may add these: what is for frozen weights, only where some are."""
    return freezes(techniques) or not any(map(is_for_frozen, techniques))


def _words(technique: Technique) -> str:
    outputs = getattr(technique, "keep", ())
    return technique.card.name + (f" (keep {', '.join(outputs)})" if outputs else "")


@dataclass
class Bench:
    """A model, and every plan for it that saves something."""

    model: str
    device: Device
    tried: list[Tried] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        made = MODELS[self.model]
        self.bare, self.window = made.make(), Batch.of(made.data())
        self.subject: Subject = Case(self.model).subject(self.bare, self.window)
        self.plain = self.run(self.subject.techniques, self.window.rows)
        assert self.plain is not None

    def answer(self, cap: int, level: str) -> Answer:
        """Return what the planner answers for a cap on the allocated bytes."""
        budget = Budget(resident_bytes(cap, BASELINE), fidelity=Fidelity[level.upper()], margin=0.0)
        machine = Machine(self.device, self.device)
        keeps = budget.fidelity >= Fidelity.ADAPTERS
        return make_plan(
            self.subject, machine, Request(Plan(), budget, seconds=SECONDS, keeps_precision=keeps)
        )

    def rivals(self, cap: int, coarsest: Fidelity) -> list[Tried]:
        """Return all plans that stay under the cap, of the finest level of precision at which any does."""
        for level in range(coarsest + 1):
            plans = [each for each in self._every(Fidelity(level)) if each.peak_bytes <= cap]
            if plans:
                return plans
        return []

    def _every(self, level: Fidelity) -> list[Tried]:
        """Return every plan of this level of precision, run where it has not been; beside adapters those of `FIELD` alone."""
        own = [rung for rung in _rungs(level) if level < Fidelity.ADAPTERS or rung.card.name in FIELD]
        rungs = [rung for rung in own if self._saves(rung)]
        plans = []
        for count in range(len(rungs) + 1):
            for added in itertools.combinations(rungs, count):
                techniques = together(self.subject.techniques, added)
                if techniques is not None and _level(techniques) is level and _is_legal(techniques):
                    plans += [self.run(techniques, size) for size in self.sizes]
        return [each for each in plans if each is not None]

    def run(self, techniques: tuple[Technique, ...], size: int) -> Tried | None:
        """Return a plan's peak, once; None where it cannot be run."""
        for known in self.tried:
            if known.techniques == techniques and known.micro_batch == size:
                return known
        try:
            peak = allocated_peak(lambda: _run(self.step(techniques, size), self.window))
        except SnugfitError:
            return None
        made = Tried(techniques, size, peak)
        self.tried.append(made)
        return made

    def step(self, techniques: Sequence[Technique], size: int) -> Step:
        """Return the step of a plan on weights of its own, which count as allocated where they are made here."""
        subject = self.subject
        material = Material(copy.deepcopy(self.bare), range(subject.examples), None, subject.loss)
        return make_step(subject.job, Plan(micro_batch=size), material, None, techniques)

    @property
    def sizes(self) -> list[int]:
        rows = self.window.rows
        fixed = Planner(self.subject, Machine(self.device, self.device)).fixed_micro_batch
        return [rows] if fixed else sizes(rows)

    def _saves(self, rung: Technique) -> bool:
        """Return whether a rung saves anything, at the largest micro-batch or the smallest; what is for frozen weights beside adapters."""
        own = self.subject.techniques
        if is_for_frozen(rung):
            own = together(own, find("lora").rungs()) or own
        techniques = together(own, (rung,))
        if techniques is None:
            return False
        for size in {self.sizes[0], self.sizes[-1]}:
            with_it, without = self.run(techniques, size), self.run(own, size)
            if with_it and without and with_it.peak_bytes < NOTICED * without.peak_bytes:
                return True
        return False


def _rungs(level: Fidelity) -> Iterator[Technique]:
    """Yield what the search may add."""
    for technique in discover().values():
        card = technique.card
        if card.family is Family.PLACEMENT or Fidelity.FULL < card.fidelity <= level:
            yield from (rung for rung in technique.rungs() if rung.refused_by("cpu") is None)


def together(own: Sequence[Technique], added: Sequence[Technique]) -> tuple[Technique, ...] | None:
    """Return the techniques with those that are added, each in the place of one that it replaces; None where they exclude each other."""
    techniques = list(own)
    for rung in added:
        place = next((n for n, each in enumerate(techniques) if rung.in_place_of(each) is not None), None)
        if place is None:
            techniques.append(rung)
        else:
            techniques[place] = rung.in_place_of(techniques[place]) or rung
    try:
        check(techniques)
    except SnugfitError:
        return None
    return tuple(techniques)


def _updates(step: Step, window: Batch) -> None:
    """Make updates until two were applied, the first of which makes the optimizer's state; float16's scale refuses some before."""
    window, applied = copy.deepcopy(window), 0
    for _ in range(SCALE_HALVINGS + 2):
        applied += step(window).applied
        if applied == 2:
            return
    raise RuntimeError(f"{applied} of {SCALE_HALVINGS + 2} updates were applied")


def _run(step: Step, window: Batch) -> None:
    """Make the updates, and what is delivered of the model, as a plan counts both."""
    _updates(step, window)
    with TemporaryDirectory() as folder, torch.no_grad(), step.averaged(), making_in_files(Path(folder)):
        if step.seams.export is not None:
            step.seams.export(step.model)


def _timed(step: Step, window: Batch) -> float:
    began = time.process_time()
    step(window)
    return time.process_time() - began


def compare(bench: Bench, cap: int, level: str) -> dict[str, Any]:
    """Return one pair: the choice beside the best of all plans."""
    answer = bench.answer(cap, level)
    row: dict[str, Any] = {"model": bench.model, "cap_bytes": cap, "fidelity": level}
    row |= {
        "plain_bytes": bench.plain.peak_bytes,
        "planned_seconds": answer.planned_seconds,
        "why": answer.why,
    }
    rivals = bench.rivals(cap, Fidelity[level.upper()])
    if not answer.fits:
        return row | {"fits": answer.fits, "plans_that_fit": len(rivals), "would_fit": answer.would_fit}
    techniques = tuple(
        find(name)(**settings) for entry in answer.choice.techniques for name, settings in entry.items()
    )
    choice = bench.run(techniques, answer.choice.micro_batch)
    assert choice is not None
    # the rungs that save nothing by themselves are not among the rivals, and the choice may have them
    medians = _race(bench, choice, rivals or [choice])
    best = min(medians, key=lambda place: medians[place])
    others = {"chosen": choice, "best": bench.tried[best]}
    peak = allocated_peak(lambda: _run(bench.step(choice.techniques, choice.micro_batch), bench.window))
    return row | {
        "fits": True,
        "plans": len(bench.tried),
        "plans_that_fit": len(rivals),
        "predicted_bytes": answer.prediction.peak_bytes,
        "predicted_seconds": answer.prediction.seconds_per_update,
        **{name: each.name for name, each in others.items()},
        **{f"{name}_bytes": each.peak_bytes for name, each in others.items()},
        **{f"{name}_seconds": medians[bench.tried.index(each)] for name, each in others.items()},
        "measured_bytes": peak,
        "under_cap": peak <= cap,
        "regret": medians[bench.tried.index(choice)] / medians[best] - 1,
        "runs": {bench.tried[place].name: bench.tried[place].seconds for place in medians},
    }


def _race(bench: Bench, choice: Tried, rivals: Sequence[Tried]) -> dict[int, float]:
    """Median seconds of the choice and of the rivals that come near the fastest, in turns; by their places in `tried`."""
    for each in rivals:
        if not each.seconds:
            step = bench.step(each.techniques, each.micro_batch)
            _updates(step, bench.window)
            each.seconds = [min(_timed(step, bench.window) for _ in range(2))]
    fastest = min(each.seconds[0] for each in rivals)
    near = [each for each in rivals if each.seconds[0] <= NEAR * fastest and each is not choice]
    racing = [(each, bench.step(each.techniques, each.micro_batch)) for each in (choice, *near)]
    for _, step in racing:
        _updates(step, bench.window)
    times: dict[int, list[float]] = {}
    for turn in range(TURNS):
        for each, step in racing if turn % 2 else reversed(racing):
            times.setdefault(bench.tried.index(each), []).append(_timed(step, bench.window))
    for place, seconds in times.items():
        bench.tried[place].seconds = [
            bench.tried[place].seconds[0] if bench.tried[place].seconds else seconds[0],
            *seconds,
        ]
    return {place: statistics.median(seconds) for place, seconds in times.items()}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the pairs as a table in Markdown."""
    head = "| model | cap, of plain | allowed | chosen | allocated, of the cap | time | best of all plans | time | regret | load |"
    lines = [head, "|" + "---|" * 10]
    for row in rows:
        asked, load = (
            f"{row['model']} | {row['share']:.0%} | {row['fidelity']}",
            f"{row['load']:.1f}" if "load" in row else "before",
        )
        if not row["fits"]:
            lines.append(f"| {asked} | nothing fits | | | {row['plans_that_fit']} plans fit | | | {load} |")
            continue
        choice_time, best_time = (f"{row[each + '_seconds'] * 1e3:.0f} ms" for each in ("chosen", "best"))
        used = row["measured_bytes"] / row["cap_bytes"]
        lines.append(
            f"| {asked} | {row['chosen']} | {used:.1%} | {choice_time} | {row['best']} (of {row['plans_that_fit']}) | {best_time} | "
            f"{row['regret']:.1%} | {load} |"
        )
    return "\n".join(lines)


def write_readme(rows: Sequence[dict[str, Any]]) -> None:
    """Put the table between its marks in README.md."""
    put_on_page(HERE / "README.md", "choice", table(rows))


def measured_before() -> list[dict[str, Any]]:
    """Return the rows of the newest result, of pairs that there still are."""
    paths = sorted((HERE / "results").glob("choice-*.json"))
    rows = json.loads(paths[-1].read_text())["rows"] if paths else []
    return [row for row in rows if _pair(row) in PAIRS]


def _good(row: dict[str, Any]) -> bool:
    """Return whether the choice stays under the cap and near the best; that nothing fits is right where nothing does."""
    if not row["fits"]:
        return row["plans_that_fit"] == 0
    return row["under_cap"] and row["regret"] <= REGRET


def _pair(row: dict[str, Any]) -> tuple[str, float, str]:
    return row["model"], row["share"], row["fidelity"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL[:SHARE]", help="the pairs of these models")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tune_malloc()
    device = calibrate(torch.device("cpu"))
    rows = {} if asked.only is None else {_pair(row): row for row in measured_before()}
    wanted = {pair: {pair[0], f"{pair[0]}:{pair[1]}"} for pair in PAIRS}
    pairs = [pair for pair in PAIRS if asked.only is None or wanted[pair] & {*asked.only}]
    if not pairs:
        parser.error(f"--only: no pair is {' or '.join(asked.only)}")
    for model, own in itertools.groupby(pairs, key=lambda pair: pair[0]):
        bench = Bench(model, device)
        for pair in own:
            began, load = time.perf_counter(), os.getloadavg()[0]
            row = {"share": pair[1], **compare(bench, round(pair[1] * bench.plain.peak_bytes), pair[2])}
            rows[pair] = row | {"seconds": time.perf_counter() - began, "load": load}
            print(json.dumps({key: value for key, value in rows[pair].items() if key != "runs"}), flush=True)
            ordered = [rows[each] for each in PAIRS if each in rows]
            write_result(HERE, {"device": device.name, "rows": ordered}, "choice")
            write_readme(ordered)
    bad = [row for row in rows.values() if not _good(row)]
    print(f"{len(rows)} of {len(PAIRS)} pairs; {len(bad)} beyond the bounds")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
