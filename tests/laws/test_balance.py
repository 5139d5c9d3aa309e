"""Balanced rows: a run is the plain loop over values that take turns, in any micro-batches, across any stop, and in a mixture."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from snugfit.core.job import Plan
from snugfit.data.examples import Examples
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.hard_examples import HardExamples
from tests.laws import problems
from tests.laws.mixtures import SIZES, VALUES, WEIGHTS, balanced, mixture, one_source, training
from tests.laws.problems import differences, relative_error
from tests.laws.test_resume_run import saved
from tests.laws.windows import by_hand, words
from tests.oracles import mixture as oracle
from tests.unit.run.training.runs import finish, resumed, seen, stop_at, told

STARTS = (0, 11, 16)


def rows_by_hand(sources: int) -> list[list[int]]:
    """The rows of three epochs of one source, or of three with weights, without shuffling."""
    if sources == 1:
        epochs = oracle.balanced([VALUES], [0] * len(VALUES), 3)
    else:
        own = [VALUES[start : start + size] for start, size in zip(STARTS, SIZES, strict=True)]
        turns = oracle.one_epoch(SIZES, [Fraction(weight) for weight in WEIGHTS], first=True)
        epochs = oracle.balanced(own, turns, 3)
    return [[STARTS[source] + row for source, _, row in epoch] for epoch in epochs]


def data(sources: int) -> Examples:
    return balanced(one_source() if sources == 1 else mixture())


@pytest.mark.parametrize("sources", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_is_the_plain_loop_over_values_that_take_turns(sources: int, tmp_path: Path) -> None:
    epochs = rows_by_hand(sources)
    windows = [tuple(epoch[start : start + 7]) for epoch in epochs for start in range(0, len(epoch), 7)]
    expected = by_hand(windows)
    for micro_batch in (None, 1, 3):
        run = training(
            tmp_path / f"{micro_batch}",
            "examples",
            data=data(sources),
            plan=Plan(micro_batch=micro_batch),
            epochs=3.0,
            shuffle=False,
        )
        assert finish(run).updates == len(windows)
        assert seen(run) == windows
        assert relative_error(problems.weights(run.step), expected) <= 1e-10


@pytest.mark.parametrize(
    ("windows", "sources"),
    [
        ("examples", 1),
        pytest.param("examples", 3, marks=pytest.mark.slow),
        pytest.param("examples that grow", 1, marks=pytest.mark.slow),
        pytest.param("tokens", 3, marks=pytest.mark.slow),
    ],
)
def test_stopping_after_every_update_changes_nothing(windows: str, sources: int, tmp_path: Path) -> None:
    techniques = (AdamW(learning_rate=0.01), Cosine(warmup=2), EMA(decay=0.8), HardExamples(fraction=0.6))

    def begun(name: str, seed: int = 1) -> Training:
        model = words(seed, dropout=0.2)
        return training(
            tmp_path / name, windows, data=data(sources), model=model, techniques=techniques, epochs=2.0
        )

    whole = begun("whole")
    finish(whole)
    stopped, read = begun("stopped"), []
    for stop in range(1, whole.total_windows):
        stop_at(stopped, stop)
        read += seen(stopped)
        stopped = resumed(begun("stopped", seed=stop + 1))
    finish(stopped)
    assert read + seen(stopped) == seen(whole)
    assert told(stopped) == told(whole)
    assert not differences(saved(whole), saved(stopped))
