"""What does it cost a script to be observed by `snugfit doctor`?

    python benchmarks/doctor/overhead.py --repeats 5

Runs the scripts of `timed` as commands, alone and by `snugfit doctor --` in turns, and compares within each turn: what lies outside
of the updates (the start, the end, and what the doctor does before and after the script); the updates that are looked at one by one; and
those that follow. The first two updates of each are left out, because torch sets itself up in them. Seconds are those of the processor, by
one thread, which other processes of the machine do not add to. Writes JSON beside this file, and the table between the markers of
docs/tools/doctor.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")

from common import paired_ratio, put_on_page, write_result  # noqa: E402

SCRIPTS = ("tabular", "images", "language", "adversarial")
PAGE = ROOT / "docs/tools/doctor.md"
DETAILED = 8  # updates that are looked at one by one, which is the command's default
FIRST = 2  # updates that say nothing


def run(script: str, *, observed: bool) -> dict[str, float]:
    """Return processor seconds of a script: all, outside of its updates, a median one of the detailed ones, and of those that follow."""
    with tempfile.TemporaryDirectory() as folder:
        marks = Path(folder) / "marks.json"
        command = [sys.executable, str(HERE / "timed" / f"{script}.py"), str(marks)]
        doctor = [sys.executable, "-m", "snugfit", "doctor", "--seconds", "3600", "--"]
        before = _children()
        process = subprocess.Popen([*(doctor if observed else ()), *command], stdout=2, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode in ((0, 1, 3) if observed else (0,)), process.args
        whole = _children() - before
        peak = used.ru_maxrss / 1024  # of the script, which is larger than what starts it
        times = json.loads(marks.read_text())
    updates = [after - earlier for earlier, after in pairwise(times)]
    return {
        "whole": whole,
        "outside": whole - (times[-1] - times[0]),
        "detailed": statistics.median(updates[FIRST:DETAILED]),
        "later": statistics.median(updates[DETAILED:]),
        "updates": len(updates),
        "peak_mib": peak,
    }


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(script: str, repeats: int) -> dict[str, Any]:
    """Return both in turns, beginning with the other one each time."""
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for repeat in range(repeats):
        for observed in (False, True) if repeat % 2 == 0 else (True, False):
            runs[observed].append(run(script, observed=observed))
            print(f"{script} {'observed' if observed else 'alone'}: {runs[observed][-1]}", file=sys.stderr)
    ratios = {
        part: paired_ratio([each[part] for each in runs[True]], [each[part] for each in runs[False]])
        for part in ("whole", "detailed", "later", "peak_mib")
    }
    start = statistics.median(
        one["outside"] - other["outside"] for one, other in zip(runs[True], runs[False], strict=True)
    )
    return {
        "script": script,
        "alone": runs[False],
        "observed": runs[True],
        "ratios": ratios,
        "start_seconds": start,
    }


def table(comparisons: list[dict[str, Any]]) -> str:
    """Return the ratios as Markdown."""
    lines = [
        f"| script | updates | alone | added outside of the updates | an update of the first {DETAILED} | a later update | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in comparisons:
        about = (HERE / "timed" / f"{each['script']}.py").read_text().split('"""')[1].rstrip(".")
        alone = {part: statistics.median(one[part] for one in each["alone"]) for part in ("whole", "later")}
        cells = " | ".join(_ratio_text(each["ratios"][part]) for part in ("detailed", "later", "peak_mib"))
        lines.append(
            f"| {about} | {each['alone'][0]['updates']} of {1000 * alone['later']:.1f} ms | {alone['whole']:.1f} s "
            f"| {each['start_seconds']:.1f} s | {cells} |"
        )
    return "\n".join(lines)


def _ratio_text(ratio: dict[str, float]) -> str:
    return f"×{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    comparisons = [compare(script, repeats) for script in SCRIPTS]
    path = write_result(HERE, {"repeats": repeats, "scripts": comparisons}, "overhead")
    put_on_page(PAGE, "overhead", table(comparisons))
    print(path)


if __name__ == "__main__":
    main()
