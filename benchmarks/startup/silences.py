"""How long is a terminal silent at most? The commands on a small table, in a pseudo-terminal.

    python benchmarks/startup/silences.py

A silence is the time in which nothing new is drawn. Each command is run once, so the figures are those of a machine as it is: the
load of the machine stands beside them. About four minutes.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import keep_compiled_files, write_result

RECIPE = "task: tabular-classification\nmodel: tabm\ndata: {train: rows.csv}\ntrain: {updates: 40, global_batch: 16}\nevaluate: {every: 20}\n"
COMMANDS = {
    "plan": "plan rows.yaml",
    "train": "train rows.yaml",
    "evaluate": "evaluate RUN rows.csv",
    "predict": "predict RUN rows.csv -o out.csv",
    "tune": "tune rows.yaml --search optimizer.adamw.learning_rate=log:1e-4..1e-2 --trials 2",
    "cv": "cv rows.yaml --folds 2",
    "find lr": "find lr rows.yaml",
    "profile": "profile rows.yaml",
    "certify": "certify rows.yaml --rows 4 --no-ranks",
    "doctor": "doctor rows.yaml",
    "export": "export RUN --to state-dict -o exported",
    "report": "report RUN",
}
_FAULT = 1
"""The exit code of a command that has done its work and found a fault."""


def silences(arguments: list[str], folder: Path) -> dict[str, Any]:
    """Run a command in a terminal; return when it said its first word, its longest silence and what was said before it, in seconds."""
    ours, its = pty.openpty()
    begun = last = time.perf_counter()
    command = subprocess.Popen(
        [sys.executable, "-m", "snugfit", *arguments],
        cwd=folder,
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(its)
    first, longest, before, newest = None, 0.0, "", ""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the command has ended, and the terminal with it
            break
        now = time.perf_counter()
        first = now - begun if first is None else first
        if now - last > longest:
            longest, before = now - last, newest[-100:]
        last, newest = now, part.decode("utf-8", "replace")
    os.close(ours)
    if command.wait() not in (0, _FAULT):
        raise SystemExit(f"snugfit {' '.join(arguments)} failed:\n{newest}")
    return {"first_word_seconds": first, "longest_silence_seconds": longest, "said_before": before}


def main() -> None:
    keep_compiled_files()
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = [f"{number % 9},{'ab'[number % 2]},{'yes' if number % 2 else 'no'}" for number in range(300)]
        (folder / "rows.csv").write_text("\n".join(["x,kind,label", *rows]) + "\n")
        (folder / "rows.yaml").write_text(RECIPE)
        for name, line in COMMANDS.items():
            run = next(iter((folder / "runs/rows").glob("2*")), Path("none"))
            print(f"{name} …", file=sys.stderr, flush=True)
            table[name] = silences(line.replace("RUN", str(run)).split(), folder)
            print(
                f"{name:10s} first word {table[name]['first_word_seconds']:6.2f} s"
                f"  longest silence {table[name]['longest_silence_seconds']:6.2f} s",
                flush=True,
            )
    result = {"question": (__doc__ or "").splitlines()[0], "commands": table, "load_average": os.getloadavg()}
    print(write_result(Path(__file__).parent, result, "silences"))


if __name__ == "__main__":
    main()
