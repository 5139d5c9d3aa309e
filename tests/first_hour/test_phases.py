"""Commands in a terminal: each phase names itself before it begins, in the order in which they come."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = """\
task: tabular-classification
model: tabm
data: {train: rows.csv}
train: {updates: 4, global_batch: 16}
evaluate: {every: 2}
"""


def typed(*arguments: str, folder: Path) -> list[str]:
    """What a command shows in a terminal of 100 columns, each text that is drawn over another one as a line of its own."""
    ours, its = pty.openpty()
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
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal is nobody's any more
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert command.wait() == 0, shown.decode()[-2000:]
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def assert_in_order(shown: list[str], *phases: str) -> None:
    """See that each phase is named, and for the first time behind the one before it."""
    firsts = [next((place for place, line in enumerate(shown) if phase in line), None) for phase in phases]
    assert None not in firsts, (phases, firsts, shown)
    assert firsts == sorted(firsts), (phases, firsts, shown)


@pytest.mark.slow
def test_every_phase_of_each_command_names_itself_before_it_begins(tmp_path: Path) -> None:
    rows = [f"{number % 9},{'ab'[number % 2]},{'yes' if number % 2 else 'no'}" for number in range(120)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,kind,label", *rows]) + "\n")
    (tmp_path / "rows.yaml").write_text(RECIPE)
    # a run as short as this one is searched for only where that is asked
    shown = typed("plan", "rows.yaml", "--seconds", "60", folder=tmp_path)
    assert_in_order(shown, "planning …", "plans looked at", "Fits")
    shown = typed("train", "rows.yaml", folder=tmp_path)
    assert_in_order(
        shown,
        "reading the data and the model …",
        "rows  runs/rows/",
        "the first update …",
        "1/4",
        "evaluating 12 rows …",
        "  best",
        "finished",
        "next",
    )
    (run,) = (tmp_path / "runs/rows").iterdir()
    shown = typed("evaluate", str(run), "rows.csv", folder=tmp_path)
    assert_in_order(shown, "loading the model, then scoring rows.csv …", "accuracy")
    shown = typed("predict", str(run), "rows.csv", "-o", "out.csv", folder=tmp_path)
    assert_in_order(shown, "loading the model, then reading rows.csv …", "output")
    search = ("--search", "optimizer.adamw.learning_rate=log:1e-4..1e-2", "--trials", "2")
    shown = typed("tune", "rows.yaml", *search, folder=tmp_path)
    assert_in_order(
        shown,
        "reading the recipe and the search …",
        "trial 1 of 2",
        "reading the data and the model …",
        "trial-1  runs/",
        "finished",
        "trial 2 of 2",
    )
