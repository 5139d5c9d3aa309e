"""What does it cost a script to be observed by `snugfit doctor`?

    python benchmarks/doctor/overhead.py --repeats 5

Runs the scripts of `timed` as commands, alone and under observation in turns, and compares within each turn: the whole command, from
its start to its end; the updates that are looked at one by one; and those that follow. The first two updates of each are left out,
because torch sets itself up in them. Writes JSON beside this file, and the table between the markers of docs/tools/doctor.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ["HF_HUB_OFFLINE"] = "1"

from common import paired_ratio, write_result  # noqa: E402

from snugfit.doctor.observe import observe  # noqa: E402

SCRIPTS = ("tabular", "images", "language")
PAGE = ROOT / "docs/tools/doctor.md"
BEGIN, END = "<!-- overhead -->", "<!-- /overhead -->"
DETAILED = 8  # updates that are looked at one by one, which is the command's default
FIRST = 2  # updates that say nothing


def run(script: str, *, observed: bool) -> dict[str, float]:
    """Return seconds of a script: the whole command, a median update among the detailed ones, and one of those that follow."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        command = [sys.executable, str(HERE / "timed" / f"{script}.py"), str(marks)]
        started = time.perf_counter()
        if observed:
            seen = observe(command, updates=DETAILED, seconds=3600)
            assert not seen.failure and not seen.failed, seen
        else:
            subprocess.run(command, check=True, stdout=2)
        whole = time.perf_counter() - started
        updates = [after - before for before, after in pairwise(json.loads(marks.read_text()))]
    return {
        "whole": whole,
        "detailed": statistics.median(updates[FIRST:DETAILED]),
        "later": statistics.median(updates[DETAILED:]),
        "updates": len(updates),
    }


def compare(script: str, repeats: int) -> dict[str, Any]:
    """Return both in turns, beginning with the other one each time."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for repeat in range(repeats):
        for observed in (False, True) if repeat % 2 == 0 else (True, False):
            runs[observed].append(run(script, observed=observed))
            print(f"{script} {'observed' if observed else 'alone'}: {runs[observed][-1]}", file=sys.stderr)
    ratios = {
        part: paired_ratio([each[part] for each in runs[True]], [each[part] for each in runs[False]])
        for part in ("whole", "detailed", "later")
    }
    return {"script": script, "alone": runs[False], "observed": runs[True], "ratios": ratios}


def table(comparisons: list[dict[str, Any]]) -> str:
    """Return the ratios as Markdown."""
    lines = [
        f"| script | updates | alone | whole command | an update of the first {DETAILED} | a later update |",
        "|---|---|---|---|---|---|",
    ]
    for each in comparisons:
        about = (HERE / "timed" / f"{each['script']}.py").read_text().split('"""')[1].rstrip(".")
        alone = statistics.median(one["whole"] for one in each["alone"])
        cells = " | ".join(_ratio_text(each["ratios"][part]) for part in ("whole", "detailed", "later"))
        lines.append(f"| {about} | {each['alone'][0]['updates']} | {alone:.1f} s | {cells} |")
    return "\n".join(lines)


def _ratio_text(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    comparisons = [compare(script, repeats) for script in SCRIPTS]
    path = write_result(HERE, {"repeats": repeats, "scripts": comparisons}, "overhead")
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    if END not in rest:
        raise SystemExit(f"{PAGE} has no markers {BEGIN} and {END}")
    PAGE.write_text(f"{head}{BEGIN}\n{table(comparisons)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
