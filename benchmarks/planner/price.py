"""What do one prediction and a search cost, in seconds of one processor?

    python benchmarks/planner/price.py              all; writes results/ and README.md
    python benchmarks/planner/price.py 8B           those with this in their names anew; the others stay as measured

Models by their published shapes, in texts of 2,048 tokens and windows of 16, on devices of the catalogue. *New*: a set of techniques is
predicted for the first time, in its largest and its smallest micro-batches. *Known*: a micro-batch between them, by what was run. *Check*: the
prediction in full that a choice is given out with. *Search*: from the model to the answer, imports left out; *frontier*: with the fastest and the
smallest plan of every level. All in one process, so that a second processor hides nothing; *side by side* is how long a command waits for
a search whose planner has a fork make about half of the runs. Each case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from common import put_on_page, write_result  # noqa: E402
from experts import FULL, QLORA, SHAPES, rung_of, subject_of  # noqa: E402
from result_lines import measure  # noqa: E402

SETS: tuple[tuple[str, ...], ...] = (("bf16",), FULL, ("master_weights", "optimizer_offload"), QLORA)

SMALL = "Llama 1B"
SHAPES_HERE: Mapping[str, Mapping[str, int]] = {
    **SHAPES,
    SMALL: {
        **SHAPES["Llama 8B"],
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "intermediate_size": 8192,
    },
}
PIECES = (("Llama 8B", "rtx4090"), ("Llama 70B", "a100-80"))
SEARCHES = ((SMALL, "rtx4090"), ("Llama 8B", "rtx4090"), ("Llama 70B", "a100-80"))
FRONTIERS = ((SMALL, "rtx4090"),)
SIDE_BY_SIDE = SEARCHES[1:]
GOALS = {
    "new": 0.5,
    "known": 0.02,
    "check": 5.0,
    "side by side, Llama 8B": 20.0,
    "side by side, Llama 70B": 30.0,
}
"""Seconds, on two idle processors."""

CASES = {
    **{f"predictions, {model}": (model, device, "predictions") for model, device in PIECES},
    **{f"search, {model}": (model, device, "search") for model, device in SEARCHES},
    **{f"side by side, {model}": (model, device, "side by side") for model, device in SIDE_BY_SIDE},
    **{f"frontier, {model}": (model, device, "frontier") for model, device in FRONTIERS},
}


def measured(name: str) -> dict[str, Any]:
    """Return what one case costs, in the planner's own process where that has a fork beside it."""
    from snugfit.planner.worker import Worker

    if CASES[name][2] != "side by side":
        return measured_here(name)
    worker = Worker()
    worker.load("transformers.modeling_utils")
    made: dict[str, Any] = worker.run(measured_here, name, timeout=1800)
    return made


def measured_here(name: str) -> dict[str, Any]:
    """Return what one case costs in this process."""
    from snugfit.planner.target import Target, machine_of

    model, device, what = CASES[name]
    with machine_of(Target(device=device)) as machine:
        if what == "predictions":
            return {"model": model, "device": device, "sets": predictions(model, machine)}
        return {"model": model, "device": device, **search(model, machine, frontier=what == "frontier")}


def predictions(model: str, machine: Any) -> list[dict[str, Any]]:
    """Return the cost of each set's predictions, one planner having seen the sets before it."""
    from snugfit.core.job import Plan
    from snugfit.planner.choice.rungs import together
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.trace.dry_run import own_garbage
    from snugfit.techniques import find

    subject = subject_of(model, SHAPES_HERE[model])
    planner, plan = Planner(subject, machine), Plan(device=machine.type)
    costs = []
    with own_garbage():
        for names in SETS:
            techniques = together(subject.techniques, tuple(rung_of(find(name)) for name in names))
            sized = planner.by_size(plan, techniques)
            new = [seconds_of(sized.traced, size) for size in (8, 1)]
            known = [seconds_of(sized.between, size) for size in (2, 4)]
            check = seconds_of(planner.predict, replace(plan, micro_batch=1), techniques)
            costs.append({"techniques": names, "new": new, "known": known, "check": check})
    return costs


def search(model: str, machine: Any, *, frontier: bool) -> dict[str, Any]:
    """Return the cost of a search in which all levels are allowed."""
    from snugfit.core.job import Plan
    from snugfit.core.technique import Fidelity
    from snugfit.planner.choice.candidate import Budget
    from snugfit.planner.devices.data_sheets import SHEETS
    from snugfit.planner.plan import Request, make_plan

    name = next(device for other, device in SEARCHES if other == model)
    budget = Budget(machine.device.memory_bytes, int(SHEETS[name].host * 2**30), Fidelity.QUANTIZED)
    request = Request(Plan(device=machine.type), budget, frontier=frontier)
    subject = subject_of(model, SHAPES_HERE[model])
    begun, used = time.perf_counter(), time.process_time()
    answer = make_plan(subject, machine, request)
    return {
        "processor_seconds": time.process_time() - used,
        "seconds": time.perf_counter() - begun,
        "fits": answer.fits,
        "added": answer.choice.added,
        "micro_batch": answer.choice.micro_batch,
        "why": answer.why,
    }


def seconds_of(call: Callable[..., Any], *arguments: Any) -> float:
    """Return the processor's seconds of a call."""
    used = time.process_time()
    call(*arguments)
    return time.process_time() - used


def table(cases: Mapping[str, Any]) -> str:
    """Return the costs as a table in Markdown."""
    lines = ["| what | processor, s | by the clock, s | aim, of two idle processors |", "|---|---|---|---|"]
    for name, one in cases.items():
        if "sets" not in one:
            aim = GOALS.get(name)
            alone = name.partition(",")[0] != "side by side"  # of the fork no seconds are known
            used = f"{one['processor_seconds']:.1f}" if alone else ""
            lines.append(f"| {name} | {used} | {one['seconds']:.1f} | {'' if aim is None else f'{aim:g}'} |")
            continue
        for kind, text in (
            ("new", "a set of techniques for the first time, in one micro-batch"),
            ("known", "a micro-batch between"),
            ("check", "the check in full, 16 micro-batches"),
        ):
            own = [each[kind] for each in one["sets"]]
            flat = [number for each in own for number in (each if isinstance(each, list) else [each])]
            spread = f"{statistics.median(flat):.3g} [{min(flat):.3g}, {max(flat):.3g}]"
            lines.append(f"| {text}, {one['model']} | {spread} |  | {GOALS[kind]:g} |")
    return "\n".join(lines)


def write_page(cases: Mapping[str, Any]) -> None:
    """Put the table between its marks in README.md."""
    put_on_page(HERE / "README.md", "price", table(cases))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print("\n" + json.dumps(measured(asked.one)))
        return
    paths = sorted((HERE / "results").glob("price-*.json"))
    cases: dict[str, Any] = json.loads(paths[-1].read_text())["cases"] if paths else {}
    for name in CASES:
        if asked.names and not any(part in name for part in asked.names):
            continue
        made = measure(name, __file__, "--one", name)
        if made is None:
            continue
        cases[name] = made
        ordered = {each: cases[each] for each in CASES if each in cases}
        print(name, json.dumps({key: value for key, value in made.items() if key != "why"}), flush=True)
        write_result(HERE, {"cases": ordered}, "price")
        write_page(ordered)


if __name__ == "__main__":
    main()
