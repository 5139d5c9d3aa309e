"""The planner's page says of its accuracy what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[4]


def newest(benchmark: str) -> dict[str, Any]:
    path = max((ROOT / "benchmarks/planner/results").glob(f"{benchmark}-*.json"))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def page() -> str:
    return " ".join((ROOT / "docs/planner.md").read_text().split())


def test_errors_by_kind_of_model_are_those_of_the_newest_runs() -> None:
    runs = newest("memory")["allocated"]
    worst = {
        kind: max(abs(run["error"]) for run in runs if run["kind"] == kind)
        for kind in ("transformer", "convolution", "other")
    }
    assert (
        f"of {len(runs)} runs on one CPU the peak of transformers was off by {worst['transformer']:.3%} at most, that of "
        f"convolutions by {worst['convolution']:.3%}, that of others, such as an LSTM, by {worst['other']:.3%}."
    ) in page()


def test_how_far_a_process_exceeds_its_prediction_is_that_of_the_newest_runs() -> None:
    runs = newest("memory")["resident"]
    above = [run["measured_bytes"] / run["predicted_bytes"] - 1 for run in runs]
    assert (
        f"in {len(runs)} measured runs a process was resident with {max(above):.1%} more than predicted at most, "
        f"and with {-min(above):.1%} less."
    ) in page()


def test_published_runs_above_their_prediction_are_told() -> None:
    lines = (ROOT / "benchmarks/planner/results/published.jsonl").read_text().splitlines()
    runs = [run for line in lines for run in json.loads(line)["runs"] if run["measured_gib"] is not None]
    above = sorted(excess for run in runs if (excess := run["measured_gib"] / run["predicted_gib"] - 1) > 0)
    *few, most = above
    assert (
        f"{len(few)} of the runs below that others published lie above their prediction, by up to {max(few):.1%}, and one on two "
        f"cards by {most:.1%}"
    ) in page()
