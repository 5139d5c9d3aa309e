"""Parts of benchmarks/language whose mistakes no table would show: the CPU time of a run in parts, and the pairs of speeches."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "language"


@pytest.fixture(autouse=True)
def _benchmark_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in ("commands", "dialogue"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_cpu_time_of_a_run_in_parts_is_that_of_all_its_processes() -> None:
    from commands import with_cpu_seconds

    def update(number: int, seconds: float) -> dict[str, object]:
        return {"event": "update", "update": number, "metrics": {"cpu_seconds": seconds}}

    def evaluation(number: int) -> dict[str, object]:
        return {"event": "evaluation", "update": number, "metrics": {"loss": 1.0}}

    first = [{"event": "run"}, update(1, 5.0), update(2, 7.0), evaluation(2)]
    second = [{"event": "run"}, evaluation(2), update(2, 6.0), update(3, 8.0), evaluation(3)]
    seconds = [round(spent, 6) for spent, event in with_cpu_seconds(first + second)]
    assert seconds == [0, 5, 7, 7, 7, 7, 13, 15, 15]


def test_pairs_are_of_neighbours_of_two_speakers_that_are_both_short() -> None:
    from dialogue import LONGEST, pairs

    play = "\n\n".join(
        [
            "ROMEO:\nIs the day so young?",
            "BENVOLIO:\nBut new struck nine.",
            "BENVOLIO:\nAy.",
            "ALL:\n" + "O" * LONGEST + "O",
            "A:\nO",
            "no speech",
        ]
    )
    assert pairs(play) == [
        {"prompt": "Answer as BENVOLIO.\nROMEO: Is the day so young?", "completion": "But new struck nine."}
    ]
