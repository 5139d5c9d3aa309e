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


def load(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Return the results by command, and the predictions as "predicted"; those of `--toy` measure nothing and are left out."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        if path.stem == "predicted" or (path.stem in COMMANDS and not result["toy"]):
            results[path.stem] = result
    return results


def figures(results: Results, command: str, check: str) -> Mapping[str, Any] | None:
    """Return the figures of a check that passed or at least measured, None where there is none."""
    row = results.get(command, {}).get("checks", {}).get(check)
    return (
        row["figures"]
        if row is not None and row["status"] in ("passed", "failed") and row["figures"]
        else None
    )


def card(results: Results) -> str:
    """Return the name of the card of the results."""
    for command in COMMANDS:
        device = figures(results, command, "device")
        if device is not None:
            return str(device["name"])
    return str(results.get("predicted", {}).get("device", "no card"))


def table(*rows: tuple[str, ...]) -> str:
    """Return a table in Markdown, whose first row is its head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *others)) + "\n"


def gib(count: float | None) -> str:
    return "" if not count else f"{count / 2**30:.1f} GiB"


def rate(value: float | None) -> str:
    return "" if not value else f"{value:,.0f}"


MEASURED: Mapping[str, Callable[[Results], Mapping[str, Any] | None]] = {
    "GPT-2 124M in bf16": lambda results: _rival(
        results, "speed", "GPT-2 124M in bf16 beside others", "snugfit step"
    ),
    "Llama 1B in bf16": lambda results: _rival(
        results, "speed", "Llama 1B in bf16 beside others", "snugfit step"
    ),
    "8B QLoRA": lambda results: _rival(results, "claims", "8B QLoRA beside Trainer and TRL", "snugfit"),
    "8B QLoRA, streamed": lambda results: (figures(results, "claims", "8B under a budget of 4 GB") or {}).get(
        "snugfit"
    ),
    "70B QLoRA, streamed": lambda results: (
        figures(results, "claims", "70B streamed under 14 GiB") or {}
    ).get("streamed"),
}
"""Where each run's figures are among the results."""


def _rival(results: Results, command: str, check: str, name: str) -> Mapping[str, Any] | None:
    row = (figures(results, command, check) or {}).get("rivals", {}).get(name)
    return None if row is None or "error" in row else row


def runs(results: Results) -> str:
    """Return tokens per second and memory of each run: measured, or else predicted."""
    rows = [("run", "tokens per second", "peak of memory", "")]
    predicted = results.get("predicted", {}).get("runs", {})
    for name, look in MEASURED.items():
        figures_of_run = look(results)
        origin = "measured" if figures_of_run is not None else "predicted"
        figures_of_run = figures_of_run if figures_of_run is not None else predicted.get(name)
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
    return f"On {'an' if card(results)[0] in 'aeh8' else 'a'} {card(results)}:\n\n{table(*rows)}"


def rivals(results: Results) -> str:
    """Return each rival's tokens per second and memory beside Snugfit's."""
    rows = [("run", "trainer", "tokens per second", "least to most", "peak of memory")]
    for command, check in (
        ("speed", "GPT-2 124M in bf16 beside others"),
        ("speed", "Llama 1B in bf16 beside others"),
        ("claims", "8B QLoRA beside Trainer and TRL"),
    ):
        check_figures = figures(results, command, check) or {}
        tokens = check_figures.get("rows", 0) * check_figures.get("tokens", 0)
        for name, row in check_figures.get("rivals", {}).items():
            if "error" in row:
                rows.append((check.partition(" beside")[0], name, "does not run", "", ""))
                continue
            seconds = row["seconds_per_update"]
            between = f"{rate(tokens / seconds['most'])} to {rate(tokens / seconds['least'])}"
            peak = gib(row.get("peak_allocated_bytes"))
            rows.append((check.partition(" beside")[0], name, rate(row["tokens_per_second"]), between, peak))
    return table(*rows) if len(rows) > 1 else "Not measured yet.\n"


def planner(results: Results) -> str:
    """Return how far predictions are from runs: how many hold each goal, the median and the worst."""
    errors: dict[str, dict[str, float]] = {"allocated": {}, "reserved": {}, "seconds": {}}
    for name, row in results.get("planner", {}).get("checks", {}).items():
        for kind, error in row.get("figures", {}).get("errors", {}).items():
            if kind in errors:
                errors[kind][name.removeprefix("predicted: ")] = abs(error)
    if not errors["allocated"]:
        return "Not measured yet.\n"
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


def proven(results: Results, names: Mapping[str, list[str]] | None = None) -> str:
    """Return each check of `correct` with where it has passed: in tiny on a CPU, as the gate runs it, and on a GPU."""
    listed = (names or {}).get("correct") or list(results.get("correct", {}).get("checks", {}))
    rows = [("property", "on a GPU")]
    checks = results.get("correct", {}).get("checks", {})
    for name in listed:
        if name == "device":
            continue
        row = checks.get(name)
        status = "not yet" if row is None else row["status"]
        if status == "passed":
            status = f"{card(results)}, {results['correct']['date']}"
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
