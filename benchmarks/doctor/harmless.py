"""Does a script under `snugfit doctor` compute what it computes alone, bit for bit?

    python benchmarks/doctor/harmless.py [NAME ...]

Runs the scripts of tests/doctor (or those whose names begin with one of NAME) as commands, on one thread and with deterministic
algorithms: alone, under observation, and alone again where these differ. Losses, weights, states of optimizers, random states, what ended the script and its
exit code are compared. A script that differs between its two plain runs is left out by name. What is done lies in
results/harmless-DATE.jsonl, a line for each script: run again on the same day, it goes on behind the last one. The sums of all that is done
are written between the markers of docs/tools/doctor.md, and the lines become one JSON file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
os.environ["HF_HUB_OFFLINE"] = "1"

from common import put_on_page, write_result  # noqa: E402

from snugfit.doctor.observe import observe  # noqa: E402
from tests.doctor.corpus import missing_package, scripts  # noqa: E402
from tests.doctor.ending import PLAIN  # noqa: E402

PAGE = ROOT / "docs/tools/doctor.md"
ENDING = [sys.executable, "-m", "tests.doctor.ending"]
FOLDERS = ("clean", "faulty", "fresh")
EQUAL, DIFFERENT, UNSTEADY = "equal", "different", "differs between two plain runs"


def ending(name: str) -> Any:
    """Return what a run wrote; None where it wrote nothing."""
    path = Path(f"{name}-0.json")
    return json.loads(path.read_text()) if path.exists() else None


def run_alone(script: Path, name: str) -> tuple[int, Any]:
    """Run a script without the doctor, and return its exit code and what it wrote."""
    done = subprocess.run([*ENDING, f"{name}.json", str(script)], check=False, capture_output=True)
    return done.returncode, ending(name)


def compare(script: Path) -> dict[str, Any]:
    """Run a script alone and under observation, and alone again where they differ; say whether all is equal."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        alone = run_alone(script, "alone")
        seen = observe([*ENDING, "observed.json", str(script)], seconds=600)
        observed = seen.exit_code, ending("observed")
        if alone == observed:
            outcome = EQUAL
        else:
            outcome = DIFFERENT if alone == run_alone(script, "again") else UNSTEADY
    return {
        "script": f"{script.parent.name}/{script.stem}",
        "outcome": outcome,
        "exit_codes": {"alone": alone[0], "observed": observed[0]},
        "losses": len(alone[1]["losses"]) if alone[1] else 0,
        "failure": seen.failure,
        "left_out": list(seen.left_out),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Return the outcomes in a sentence."""
    names = {
        outcome: [row["script"] for row in rows if row["outcome"] == outcome]
        for outcome in (DIFFERENT, UNSTEADY)
    }
    equal = len(rows) - sum(map(len, names.values()))
    losses = sum(row["losses"] for row in rows if row["outcome"] == EQUAL)
    everything = sum(len(scripts(folder)) for folder in FOLDERS)
    text = f"{len(rows)} of the {everything} scripts were run; {equal} compute the same, bit for bit, in {losses:,} backward passes"
    text += f"; different: {', '.join(names[DIFFERENT]) or 'none'}"
    return f"{text}; left out, since two plain runs differ: {', '.join(names[UNSTEADY]) or 'none'}."


def main() -> None:
    for name, value in PLAIN.items():
        os.environ[name] = value
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")))
    )
    done_path = HERE / "results" / f"harmless-{time.strftime('%Y-%m-%d')}.jsonl"
    rows = [json.loads(line) for line in done_path.read_text().splitlines()] if done_path.exists() else []
    done = {row["script"] for row in rows}
    for folder in FOLDERS:
        for script in scripts(folder):
            name = f"{folder}/{script.stem}"
            wanted = len(sys.argv) == 1 or any(script.stem.startswith(each) for each in sys.argv[1:])
            if name in done or not wanted or missing_package(script):
                continue
            rows.append(compare(script))
            print(f"{name}: {rows[-1]['outcome']}", file=sys.stderr, flush=True)
            with done_path.open("a") as lines:
                lines.write(json.dumps(rows[-1]) + "\n")
    path = write_result(HERE, {"scripts": rows}, "harmless")
    done_path.unlink()
    put_on_page(PAGE, "harmless", summary(rows))
    print(path)


if __name__ == "__main__":
    main()
