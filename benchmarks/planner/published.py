"""Runs that others measured and published, as the planner predicts them, and what it would choose in their place.

    python benchmarks/planner/published.py            all jobs; what is in the results already is not made again
    python benchmarks/planner/published.py --anew 8B  the jobs with this in their names, or in those of their runs, anew
    python benchmarks/planner/published.py --figures  the published runs alone, without a search, where they are not there yet
    python benchmarks/planner/published.py --pages    the tables from the results that are there

Models are made from their published shapes: nothing is downloaded, and no weights or data are needed. What was published stands with its
source in `published_cases.py`; where ours cannot be the same, `differs` says how. A *job* is a model, a machine and a window: its runs are
predicted with the techniques that were published. For the first window of each model and machine, and each level of precision that its runs
have, a plan is searched for, which has to fit and to be no slower. Below mixed precision the search takes a coarser plan only where it is 1.5 times as fast; where it left one for this,
it is run again with a plan that need only be faster. Each job runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import commit, put_on_page  # noqa: E402
from published_cases import ADAMW, CASES, MODELS, SOON, Case  # noqa: E402
from result_lines import measure, read, write  # noqa: E402

RESULTS = HERE / "results" / "published.jsonl"
README, GUIDE = HERE / "README.md", HERE.parent.parent / "docs" / "planner.md"
SLOWER = 0.05
"""Of a published set's tokens a second that a choice may be short of."""

JOBS = tuple(dict.fromkeys(case.job for case in CASES))


class _Here:
    """The planner's own process, in which all plans of a job are made."""

    def run(self, function: Any, *arguments: Any, **_settings: Any) -> Any:
        return function(*arguments)


# ----------------------------------------------------------------------------------------------------------- the plans


def measured(job: str, search: bool) -> dict[str, Any]:
    """Predict the runs of a job, and search for its choice at each level of precision that they have."""
    cases = [case for case in CASES if case.job == job]
    runs = [run_of(case, planned(case)) for case in cases]
    made = {"job": job, "date": time.strftime("%Y-%m-%d"), "commit": commit(), "runs": runs}
    return {**made, "choices": choices_of(cases, runs)} if search else made


def choices_of(cases: Sequence[Case], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the choice at each level of precision that the runs of a job have; none where the model and machine have another job first."""
    first = next(case for case in CASES if case.machine == cases[0].machine)
    levels = dict.fromkeys(run["level"] for run in runs if "level" in run) if first in cases else ()
    choices = {}
    for level in levels:
        rivals = [run for run in runs if run.get("level") == level and run["fits"]]
        best = max((run["tokens_per_second"] for run in rivals), default=0.0)
        plan = planned(cases[0], level)
        if _slower(plan, best) and plan.get("level") != level:
            plan["faster"] = planned(cases[0], level, worth=1.0)
        choices[level] = plan
    return choices


def run_of(case: Case, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan of a published run beside what was measured of it, where that was."""
    low, _ = case.published or (0, 0)
    measured = low if low and not case.estimate else None
    predicted = plan.get("peak_gib" if case.active else "reserved_gib")
    return {"name": case.name, "measured_gib": measured, "predicted_gib": predicted, **plan}


def _slower(choice: Mapping[str, Any], tokens_per_second: float) -> bool:
    return not choice.get("fits") or choice["tokens_per_second"] < (1 - SLOWER) * tokens_per_second


def planned(case: Case, level: str | None = None, worth: float | None = None) -> dict[str, Any]:
    """Return the plan of a run as it was published; or where a level is given what is chosen down to it. An error stands in its place."""
    from snugfit.errors import SnugfitError
    from snugfit.planner.target import Target
    from snugfit.recipe import load_recipe
    from snugfit.run.plans.recipe_plan import plan_recipe

    here: Any = _Here()
    target = Target(
        device=case.device,
        devices=case.devices,
        nodes=case.nodes,
        network="infiniband-ndr" if case.nodes > 1 else None,
        memory=None if case.memory is None else int(case.memory * 2**30),
        host_memory=None if case.host is None else int(case.host * 2**30),
        search=level is not None,
        fidelity=level,
        fewer=False,
        worth=worth,
    )
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text(json.dumps(MODELS[case.model]))
        (root / "recipe.yaml").write_text(json.dumps(recipe(case, level is not None)))  # which is YAML too
        try:
            answer = plan_recipe(load_recipe(root / "recipe.yaml"), target, here, anew=True)
        except SnugfitError as error:
            return {"error": str(error)}
    prediction = answer.prediction
    return {
        "fits": answer.fits,
        "level": answer.choice.fidelity,
        "added": answer.choice.added,
        "numerics": answer.choice.numerics,
        "micro_batch": answer.choice.micro_batch,
        "strategy": answer.choice.strategy,
        "peak_gib": prediction.peak_bytes / 2**30,
        "reserved_gib": prediction.reserved_bytes / 2**30,
        "host_gib": prediction.host_peak_bytes / 2**30,
        "peak_by_kind": dict(prediction.peak_by_kind),
        "tokens_per_second": prediction.tokens_per_second,
        "why": answer.why,
        "processor_seconds": round(time.process_time() - began, 1),
    }


def recipe(case: Case, for_choice: bool) -> dict[str, Any]:
    """Return the recipe of a run; for a choice, without all that saves memory or time."""
    plan: dict[str, Any] = {"device": "cpu", "devices": case.devices}
    if not for_choice:
        plan["numerics"] = case.numerics
        if case.micro_batch is not None:
            plan["micro_batch"] = case.micro_batch
        if case.strategy is not None:
            plan["strategy"] = case.strategy
    return {
        "task": "causal-lm",
        "model": "model",
        "data": {"train": "packed.txt", "validation": None, "max_length": case.length},
        "train": {"updates": 1000, "epochs": None, "global_batch": case.rows},
        "optimizer": ADAMW if for_choice else case.optimizer or ADAMW,
        "schedule": None,
        "techniques": [] if for_choice else list(case.techniques),
        "evaluate": {"metrics": []},
        "plan": plan,
    }


# ----------------------------------------------------------------------------------------------------------- the tables


def by_name(results: Sequence[Mapping[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return each run that was predicted, with the choice beside it."""
    return {
        run["name"]: (run, one.get("choices", {}).get(run.get("level")))
        for one in results
        for run in one["runs"]
    }


def figures(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of published and predicted figures."""
    made = by_name(results)
    lines = [
        "| run | published, GiB | predicted | tokens/s published | predicted | what differs |",
        "|---|---|---|---|---|---|",
    ]
    for case in (case for case in CASES if case.name in made):
        run, _ = made[case.name]
        theirs = "" if case.tokens_per_second is None else f"{case.tokens_per_second:,.0f}"
        ours = ["no plan", ""]
        if "error" not in run:
            ours = [_gib(case, run), f"{run['tokens_per_second']:,.0f}"]
        lines.append(
            f"| {_linked(case)}, {case.device} | {_published(case)} | {ours[0]} | {theirs} | {ours[1]} | "
            f"{run.get('error', case.differs)} |"
        )
    return "\n".join(lines)


def choices(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of published sets and choices, as both are predicted."""
    made = by_name(results)
    lines = [
        "| run, level | published set | GiB | tokens/s | choice | GiB | tokens/s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in (case for case in CASES if case.name in made):
        run, choice = made[case.name]
        if choice is None:
            continue
        for place, one in enumerate([choice, *([choice["faster"]] if "faster" in choice else [])]):
            named = ("", "") if place else (f"{case.name}, {run['level']}", _set(case))
            ratio = "–"
            if run["fits"] and one.get("fits"):
                ratio = f"{one['tokens_per_second'] / run['tokens_per_second']:.2f}"
            published = ["", ""]
            if not place:
                published = [_gib(case, run), f"{run['tokens_per_second']:,.0f}"]
                if not run["fits"]:
                    published[1] = "does not fit"
            ours = [one.get("error", "nothing fits"), "", ""]
            if one.get("fits"):
                what = ", ".join([*one["added"], f"micro-batch {one['micro_batch']}"])
                if one["strategy"] != "single":
                    what += f", {one['strategy']}"
                if place:
                    what = f"where a coarser plan need only be faster: {what}"
                ours = [what, _gib(case, one), f"{one['tokens_per_second']:,.0f}"]
            lines.append(f"| {' | '.join([*named, *published, *ours, ratio])} |")
    return "\n".join(lines)


def _linked(case: Case) -> str:
    return case.name if case.source is None else f"[{case.name}]({case.source})"


def _gib(case: Case, plan: Mapping[str, Any]) -> str:
    return f"{plan['peak_gib' if case.active else 'reserved_gib']:.1f}"


def _published(case: Case) -> str:
    if case.published is None:
        return "no figure"
    low, high = case.published
    if low == high:
        return f"about {low:.3g}" if case.estimate else f"{low:.4g}"
    return f"{low:.2g} to {high:.3g}" if low else f"at most {high:.3g}"


def _set(case: Case) -> str:
    """Return what a published set is called."""
    names = [each if isinstance(each, str) else next(iter(each)) for each in case.techniques]
    states = [] if case.optimizer is None else [next(iter(case.optimizer))]
    return ", ".join([case.numerics, *states, *names, *([case.strategy] if case.strategy else [])])


def write_pages(results: Sequence[Mapping[str, Any]]) -> None:
    """Write the tables into the pages that have them."""
    for page, mark, table in (
        (README, "published", figures(results)),
        (GUIDE, "published", figures(results)),
        (README, "choices", choices(results)),
    ):
        put_on_page(page, mark, table)


# ---------------------------------------------------------------------------------------------------------- the command


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--anew", action="store_true", help="what is in the results already too")
    parser.add_argument("--figures", action="store_true", help="no searches")
    parser.add_argument("--pages", action="store_true", help="no plans, the tables alone")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # in this process, and nothing is written
    asked = parser.parse_args()
    if asked.one is not None:
        print("\n" + json.dumps(measured(asked.one, search=not asked.figures)))
        return
    if asked.pages:
        write_pages(read(RESULTS))
        return
    for job in sorted(JOBS, key=_turn):
        called = [job, *(case.name for case in CASES if case.job == job)]
        if asked.names and not any(name in each for name in asked.names for each in called):
            continue
        there = next((each for each in read(RESULTS) if each["job"] == job), None)
        if there is not None and not asked.anew and (asked.figures or "choices" in there):
            continue
        made = measure(job, __file__, "--one", job, *(["--figures"] if asked.figures else []))
        if made is None:
            continue
        results = [*(each for each in read(RESULTS) if each["job"] != job), made]
        write(RESULTS, results, "job", JOBS)
        print(
            job,
            *map(_line, made["runs"]),
            *map(_line, made.get("choices", {}).values()),
            sep="\n  ",
            flush=True,
        )
    write_pages(read(RESULTS))


def _turn(job: str) -> int:
    """Return the place at which a job is planned: those that take least first."""
    return next((place for place, name in enumerate(SOON) if job.startswith(name)), len(SOON))


def _line(plan: Mapping[str, Any]) -> str:
    if "error" in plan:
        return f"{plan.get('name', 'choice')}: {plan['error']}"
    what = plan.get("name") or ", ".join(plan["added"])
    return (
        f"{what}: {plan['level']}, {'fits' if plan['fits'] else 'does not fit'}, {plan['reserved_gib']:.1f} GiB, "
        f"{plan['tokens_per_second']:,.0f} tokens/s, {plan['processor_seconds']} s"
    )


if __name__ == "__main__":
    main()
