"""The tables of the documentation, made from the results: measured where a result is there, predicted where none is.

    python benchmarks/gpu/tables.py             writes the tables into the pages that have a place for them
    python benchmarks/gpu/tables.py --check     says whether they are up to date, and writes nothing

A page has a place where it says `<!-- gpu: NAME -->`; it ends at `<!-- gpu end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE.parent / "results" / "gpu"
PAGES = (ROOT / "README.md", ROOT / "docs" / "gpu.md")
PLACE = re.compile(r"(<!-- gpu: (?P<name>[\w-]+) -->\n).*?(<!-- gpu end -->)", re.DOTALL)
COMMANDS = ("correct", "planner", "claims", "speed")
Results = Mapping[str, Mapping[str, Any]]
NOTHING = "Not measured yet.\n"


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results by command, and the predictions as "predicted"; those of `--toy` measure nothing and are left out."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if path.stem == "predicted" or (path.stem in COMMANDS and not result["toy"]):
            results[path.stem] = result
    return results


def rows_of(results: Results, command: str) -> Mapping[str, Mapping[str, Any]]:
    """Return how the checks of a command ended, by their names."""
    rows: Mapping[str, Mapping[str, Any]] = results.get(command, {}).get("checks", {})
    return rows


def figures(results: Results, command: str, check: str) -> Mapping[str, Any] | None:
    """Return the figures of a check, also of one that failed or was ended once it had measured something; None where there are none."""
    return rows_of(results, command).get(check, {}).get("figures") or None


def card(results: Results) -> str:
    """Return the name of the card of the results."""
    for command in COMMANDS:
        device = figures(results, command, "device")
        if device is not None:
            return str(device["name"])
    return str(results.get("predicted", {}).get("device", "no card"))


def measured(results: Results, command: str, check: str) -> str:
    """Return "measured", with the card where that is not the one of the other results, and with how the check ended where it did not pass."""
    row = rows_of(results, command).get(check, {})
    device = row.get("device") or card(results)
    words = "measured" if device == card(results) else f"measured on {device}"
    return words if row.get("status") == "passed" else f"{words}; {row.get('status')}"


def table(*rows: tuple[str, ...]) -> str:
    """Return a table in Markdown, whose first row is its head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others)) + "\n"


def gib(count: float | None) -> str:
    return "" if not count else f"{count / 2**30:.1f} GiB"


def rate(value: float | None) -> str:
    return "" if not value else f"{value:,.0f}"


GPT2, LLAMA, QLORA = (
    ("speed", "GPT-2 124M in bf16 beside others"),
    ("speed", "Llama 1B in bf16 beside others"),
    ("claims", "8B QLoRA beside Trainer and TRL"),
)
UNDER_4_GB, UNDER_14_GIB = ("claims", "8B under a budget of 4 GB"), ("claims", "70B streamed under 14 GiB")
WAYS = ("speed", "ways to be faster: compile, fp8, chunked loss")
IDLE, SMALL, SAVES = (
    ("speed", "idle time of an update"),
    ("speed", "updates of an MLP per second"),
    ("speed", "milliseconds that checkpoints block"),
)
CALIBRATION, KERNELS, CONTEXT, SEGMENTS = (
    ("planner", "calibration"),
    ("planner", "attention runs in the kernel that is assumed"),
    ("planner", "context and workspaces are as large as they are taken to be"),
    ("planner", "classic and expandable segments beside each other"),
)
CONTROL, ACCELERATE = (
    ("claims", "streamed nf4 layers have the gradients of resident ones, above 165 MiB too"),
    ("claims", "the same with accelerate's offload of bitsandbytes' layers"),
)
Place = tuple[str, str]
"""A command and its check."""

RUNS: Mapping[str, tuple[Place, tuple[str, ...]]] = {
    "GPT-2 124M in bf16": (GPT2, ("rivals", "snugfit step")),
    "Llama 1B in bf16": (LLAMA, ("rivals", "snugfit step")),
    "8B QLoRA": (QLORA, ("rivals", "snugfit")),
    "8B QLoRA, streamed": (UNDER_4_GB, ("snugfit",)),
    "70B QLoRA, streamed": (UNDER_14_GIB, ("streamed",)),
}
"""Where each run's figures are among the results."""


def _within(given: Mapping[str, Any] | None, path: tuple[str, ...]) -> Mapping[str, Any] | None:
    """Return the figures at a path, None where there are none or only an error."""
    for name in path:
        given = (given or {}).get(name)
    return None if given is None or "error" in given else given


def runs(results: Results) -> str:
    """Return tokens per second and memory of each run: measured, or else predicted."""
    rows = [("run", "tokens per second", "peak of memory", "")]
    predicted = results.get("predicted", {})
    forecast = "predicted"
    if predicted and predicted["device"] not in card(results).lower():
        forecast += f" of an {predicted['device']}"
    for name, (place, path) in RUNS.items():
        figures_of_run = _within(figures(results, *place), path)
        origin = forecast if figures_of_run is None else measured(results, *place)
        figures_of_run = predicted.get("runs", {}).get(name) if figures_of_run is None else figures_of_run
        if figures_of_run is not None:
            rows.append(
                (
                    name,
                    rate(figures_of_run["tokens_per_second"]),
                    gib(figures_of_run.get("peak_allocated_bytes")),
                    origin,
                )
            )
    if len(rows) == 1:
        return "Nothing has been measured or predicted yet.\n"
    return f"On {'an' if card(results)[0] in 'aehN8' else 'a'} {card(results)}:\n\n{table(*rows)}"


def rivals(results: Results) -> str:
    """Return each rival's tokens per second and memory beside Snugfit's."""
    rows = [("run", "trainer", "tokens per second", "least to most", "turns", "peak of memory", "")]
    for (command, check), key, run in (
        (GPT2, "rivals", ""),
        (LLAMA, "rivals", ""),
        (QLORA, "rivals", ""),
        (WAYS, "ways", "GPT-2 124M, Snugfit"),
    ):
        check_figures = figures(results, command, check) or {}
        tokens = check_figures.get("rows", 0) * check_figures.get("tokens", 0)
        for name, row in check_figures.get(key, {}).items():
            of_run, origin = run or check.partition(" beside")[0], measured(results, command, check)
            if "error" in row:
                rows.append((of_run, name, "does not run", "", "", "", origin))
                continue
            seconds = row["seconds_per_update"]
            between = f"{rate(tokens / seconds['most'])} to {rate(tokens / seconds['least'])}"
            peak, turns = gib(row.get("peak_allocated_bytes")), str(len(seconds["repeats"]))
            rows.append((of_run, name, rate(row["tokens_per_second"]), between, turns, peak, origin))
    return table(*rows) if len(rows) > 1 else NOTHING


def planner(results: Results) -> str:
    """Return how far predictions are from runs: how many hold each goal, the median and the worst."""
    errors: dict[str, dict[str, float]] = {"allocated": {}, "reserved": {}, "seconds": {}}
    for name, row in rows_of(results, "planner").items():
        for kind, error in row.get("figures", {}).get("errors", {}).items():
            if kind in errors:
                errors[kind][name.removeprefix("predicted: ")] = abs(error)
    if not errors["allocated"]:
        return NOTHING
    goals = {"allocated": 0.02, "reserved": 0.05, "seconds": 0.15}
    words = {"allocated": "bytes allocated", "reserved": "bytes reserved", "seconds": "time of an update"}
    rows = [("figure", "goal", "hold it", "median", "worst")]
    for kind, errors_by_case in errors.items():
        if errors_by_case:
            worst = max(errors_by_case, key=lambda case: errors_by_case[case])
            middle = sorted(errors_by_case.values())[len(errors_by_case) // 2]
            held = sum(error <= goals[kind] for error in errors_by_case.values())
            rows.append(
                (
                    words[kind],
                    f"{goals[kind]:.0%}",
                    f"{held} of {len(errors_by_case)}",
                    f"{middle:.1%}",
                    f"{errors_by_case[worst]:.1%} ({worst})",
                )
            )
    return table(*rows)


def budgets(results: Results) -> str:
    """Return what was chosen under each budget, what it took, and how it does beside the best of the others that were trained."""
    rows = [
        ("budget", "choice", "milliseconds of an update", "predicted", "reserved", "slower than the best")
    ]
    for name, row in rows_of(results, "planner").items():
        choice = row.get("figures", {}).get("choice") if name.startswith("planned and trained: ") else None
        if choice is None:
            continue
        milliseconds, regret = "does not run", row["figures"].get("regret")
        if "seconds" in choice:
            milliseconds = f"{choice['seconds']['median'] * 1e3:.1f}"
        slower = "" if regret is None else f"{max(0.0, regret):.0%}"
        forecast, reserved = (
            f"{choice['predicted_seconds'] * 1e3:.1f}",
            gib(choice.get("peak_reserved_bytes")),
        )
        budget = name.removeprefix("planned and trained: ")
        rows.append((budget, choice["plan"], milliseconds, forecast, reserved, slower))
    return table(*rows) if len(rows) > 1 else NOTHING


def _share(value: float | str | None) -> str:
    return f"{value:.1%}" if isinstance(value, float) else ""


def _streamed(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    row = given.get("snugfit") or given.get("streamed") or {}
    if row.get("link_bytes_per_second"):
        yield "gigabytes per second over the link", f"{row['link_bytes_per_second'] / 1e9:.1f}"
    if row.get("peak_reserved_bytes"):
        yield "reserved at the peak", gib(row["peak_reserved_bytes"])
    if given.get("share of copies hidden") is not None:
        yield "copies hidden behind what is computed", _share(given["share of copies hidden"])
    if given.get("streaming costs") is not None:
        yield "more time than with everything resident", _share(given["streaming costs"])


def _idle(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, _share(share)) for name, share in given.items() if share is not None)


def _small(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, rate(each)) for name, each in given["updates_per_second"].items())


def _saves(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rows = (
        (name, row) for name, row in given.items() if isinstance(row, Mapping)
    )  # beside them, why it failed
    yield from ((name, f"{row['median blocked']:.1f}") for name, row in rows)


def _calibration(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    measured_rates = given["measured"].get("rates", {})
    for name, share in given["share_of_sheet"].items():
        if f"matmul.{name}" in measured_rates:
            yield f"{name}: share of the sheet's FLOP/s", _share(share)
    link = given["measured"]["host_link"]
    ways = (("there", "bandwidth"), ("back", "back"), ("each of both at once", "each_of_both"))
    yield from ((f"link, {way}, GB/s", f"{link[key] / 1e9:.1f}") for way, key in ways if link.get(key))
    if disk := given["measured"].get("disk"):
        yield "disk, GB/s", f"{disk / 1e9:.2f}"


def _kernels(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cases = given.get("cases", {})
    as_assumed = sum(row["ran"] == [row["assumed"]] for row in cases.values())
    yield "calls whose kernel was the assumed one", f"{as_assumed} of {len(cases)}"


def _context(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from ((name, gib(given[name])) for name in ("taken", "context", "with attention") if name in given)


def _segments(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, row in given.items():
        yield f"{name}: milliseconds of an update", f"{row['median seconds'] * 1e3:.1f}"
        if row["peak_reserved_bytes"]:
            yield f"{name}: reserved", gib(row["peak_reserved_bytes"])


def _errors(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give relative errors of gradients, by the layers' size: a number, or what a rival raised or made of it."""
    for name, row in given.items():
        for what, error in row.items():
            if what.startswith("error"):
                yield f"{name}: relative {what}", f"{error:.1g}" if isinstance(error, float) else str(error)
            elif what == "raised":
                yield f"{name}: raised", str(error).strip().splitlines()[-1][:100].replace("|", "/")


OTHERS: Mapping[str, tuple[Place, Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]]]] = {
    "8B streamed under 4 GB": (UNDER_4_GB, _streamed),
    "70B streamed under 14 GiB": (UNDER_14_GIB, _streamed),
    "idle time of the device": (IDLE, _idle),
    "updates of an MLP per second": (SMALL, _small),
    "milliseconds that a checkpoint blocks": (SAVES, _saves),
    "calibration": (CALIBRATION, _calibration),
    "attention": (KERNELS, _kernels),
    "context and workspaces": (CONTEXT, _context),
    "the allocator": (SEGMENTS, _segments),
    "gradients of streamed nf4 layers": (CONTROL, _errors),
    "the same by accelerate's offload": (ACCELERATE, _errors),
}
"""Figures without a table of their own: where they are, and what is said of them."""


PUBLISHED: Mapping[str, Place] = {"8B streamed, by Soup": UNDER_4_GB, "8B QLoRA, by Unsloth": QLORA}
"""Checks whose results have beside them what others have published."""


def others(results: Results) -> str:
    """Return what else was measured, one figure a row, and what others have published of the same."""
    rows = [("of", "figure", "", "")]
    for name, (place, listed) in OTHERS.items():
        if (given := figures(results, *place)) is not None:
            origin = measured(results, *place)
            rows += [(name, what, value, origin) for what, value in listed(given)]
    for name, place in PUBLISHED.items():
        for what, value in (figures(results, *place) or {}).get("published", {}).items():
            rows.append((name, what.replace("_", " "), str(value), "published, not measured here"))
    return table(*rows) if len(rows) > 1 else NOTHING


def proven(results: Results, names: Mapping[str, list[str]] | None = None) -> str:
    """Return each check of `correct` with where it has passed: in tiny on a CPU, as the gate runs it, and on a GPU."""
    listed = (names or {}).get("correct") or list(results.get("correct", {}).get("checks", {}))
    rows = [("property", "on a GPU")]
    checks = rows_of(results, "correct")
    for name in listed:
        if name == "device":
            continue
        row = checks.get(name)
        status = "not yet" if row is None else row["status"]
        if status == "passed":
            status = f"{row.get('device') or card(results)}, {row.get('date') or results['correct']['date']}"
        elif row is not None and row.get("reason"):
            status = f"{status}: {row['reason'].splitlines()[0][:100]}"
        rows.append((name, status))
    return table(*rows)


def order() -> str:
    """Return the stages of `all`, with what they take together and how that was estimated."""
    from stages import STAGES

    rows, total = [("stage", "seconds", "until", "at most", "estimated by")], 0
    for stage in STAGES:
        total += stage.seconds
        rows.append((stage.name, str(stage.seconds), str(total), str(stage.most_seconds), stage.estimate))
    return table(*rows)


TABLES: Mapping[str, Callable[[Results], str]] = {
    "runs": runs,
    "beside": rivals,
    "planner": planner,
    "budgets": budgets,
    "others": others,
    "stages": lambda results: order(),
    "proven": lambda results: proven(results, {"correct": correct_checks()}),
}


def correct_checks() -> list[str]:
    """Return the names of the checks of `correct`, without running anything."""
    return [*_names(HERE / "correct")]


def _names(folder: Path) -> Iterator[str]:
    import ast

    modules = next(
        ast.literal_eval(node.value)
        for node in ast.parse((folder / "__init__.py").read_text()).body
        if isinstance(node, ast.Assign)
    )
    for module in modules:
        for node in ast.parse((folder / f"{module}.py").read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for each in node.decorator_list:
                    if isinstance(each, ast.Call) and getattr(each.func, "id", "") == "check":
                        yield ast.literal_eval(each.args[0])


def written(text: str, results: Results) -> str:
    """Return a page with its tables made anew.

    Raises:
        KeyError: it has a place for a table that there is not.
    """
    return PLACE.sub(lambda place: f"{place[1]}{TABLES[place['name']](results)}{place[3]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tables of the GPU's results.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a page is out of date"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    results = load(given.results)
    stale = []
    for page in PAGES:
        text = page.read_text()
        made = written(text, results)
        if made != text:
            stale.append(page.name)
            if not given.check:
                page.write_text(made)
    print(f"{'out of date' if given.check else 'written'}: {', '.join(stale) or 'none'}")
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
