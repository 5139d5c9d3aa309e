"""Mixtures: a run is the plain loop over what its sources hand out, in any micro-batches, with any workers and across any stop."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from snugfit.core.job import Plan
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.hard_examples import HardExamples
from tests.laws import problems
from tests.laws.mixtures import SIZES, WEIGHTS, WINDOWS, training
from tests.laws.problems import differences, relative_error
from tests.laws.test_resume_run import saved
from tests.laws.windows import by_hand, words
from tests.oracles import mixture as oracle
from tests.unit.run.training.runs import finish, resumed, seen, stop_at, told


@pytest.mark.slow
@pytest.mark.parametrize("stopping", ["first_exhausted", "all_exhausted"])
def test_a_run_is_the_plain_loop_over_what_its_sources_hand_out(stopping: str, tmp_path: Path) -> None:
    first = stopping == "first_exhausted"
    weights = [Fraction(weight) for weight in WEIGHTS]
    epochs = [
        [sum(SIZES[:source]) + row for source, _, row in epoch]
        for epoch in oracle.run(SIZES, weights, 3, first=first)
    ]
    windows = [tuple(epoch[start : start + 7]) for epoch in epochs for start in range(0, len(epoch), 7)]
    expected = by_hand(windows)
    for micro_batch, workers in ((None, 0), (1, 0), (3, 0), (2, 1)):
        run = training(
            tmp_path / f"{micro_batch} {workers}",
            "examples",
            stopping=stopping,
            plan=Plan(micro_batch=micro_batch, num_workers=workers),
            epochs=3.0,
            shuffle=False,
        )
        assert finish(run).updates == len(windows)
        assert seen(run) == windows
        assert relative_error(problems.weights(run.step), expected) <= 1e-10


@pytest.mark.parametrize(
    ("windows", "stopping"),
    [
        ("examples", "first_exhausted"),
        pytest.param("examples", "all_exhausted", marks=pytest.mark.slow),
        pytest.param("examples that grow", "first_exhausted", marks=pytest.mark.slow),
        pytest.param("tokens", "first_exhausted", marks=pytest.mark.slow),
    ],
)
def test_stopping_after_every_update_changes_nothing(windows: str, stopping: str, tmp_path: Path) -> None:
    techniques = (AdamW(learning_rate=0.01), Cosine(warmup=2), EMA(decay=0.8), HardExamples(fraction=0.6))

    def begun(name: str, seed: int = 1) -> Training:
        model = words(seed, dropout=0.2)
        return training(
            tmp_path / name, windows, stopping=stopping, model=model, techniques=techniques, epochs=2.0
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


@pytest.mark.parametrize("windows", WINDOWS)
def test_an_epoch_ends_where_its_first_source_is_through(windows: str, tmp_path: Path) -> None:
    run = training(tmp_path, windows)
    finish(run)
    order = run.loader.order
    turns = oracle.one_epoch(SIZES, [Fraction(weight) for weight in WEIGHTS], first=True)
    assert order.examples == len(turns)
    read = [index for window in seen(run) for index in window]
    for epoch in range(3):
        own = read[epoch * len(turns) : (epoch + 1) * len(turns)]
        assert [0 if index < 11 else 1 if index < 16 else 2 for index in own] == turns
