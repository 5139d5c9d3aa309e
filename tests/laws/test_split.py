"""Split: any micro-batch split of a window gives the same gradient and the same update."""

from __future__ import annotations

import pytest

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from tests.laws import problems
from tests.laws.problems import Problem, Window, make_step, relative_error

CASES = problems.cases(problems.singles_and_together(), problems.suitable)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
def test_any_split_of_a_window_gives_the_same_update(
    problem: problems.Maker, techniques: tuple[Technique, ...]
) -> None:
    agree_for_every_split(problem(techniques), techniques, micro_batches=[1, 2, 4, 6])


@pytest.mark.parametrize("techniques", problems.singles(), ids=problems.name_of)
def test_the_nominal_weight_only_moves_the_range(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    window = problem.windows()[0]
    steps = [make_step(problem, techniques, micro_batch=3, nominal=nominal) for nominal in (1.0, 1000.0)]
    one, other = (step(window) for step in steps)
    assert one.loss == pytest.approx(other.loss, rel=problem.tolerance)
    assert (
        relative_error(*(problems.traces(step) for step in steps), floor=problem.floor) <= problem.tolerance
    )


def test_batch_norm_couples_the_rows_of_a_micro_batch_by_nature() -> None:
    """Why the model with batch norm is not put through this law: its micro-batch is part of the recipe."""
    problem = problems.normed(())
    window = problem.windows()[0]
    whole, split = (make_step(problem, (), micro_batch=micro_batch) for micro_batch in (None, 4))
    whole(window), split(window)
    assert relative_error(problems.gradients(split), problems.gradients(whole)) > 0.01


def agree_for_every_split(
    problem: Problem, techniques: tuple[Technique, ...], micro_batches: list[int]
) -> None:
    if any(technique.card.couples_examples for technique in techniques):
        pytest.skip("its card says that it couples the examples of a micro-batch")
    windows = problem.windows()
    expected = trajectory(problem, techniques, windows, None)
    assert all(found.loss > 0 for found in expected)
    for micro_batch in micro_batches:
        if micro_batch < rows_kept_together(problem, techniques, windows[0]):
            with pytest.raises(SettingError, match="which stay together"):
                trajectory(problem, techniques, windows, micro_batch)
            continue
        found = trajectory(problem, techniques, windows, micro_batch)
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            where = f"window {number}, micro-batches of {micro_batch}"
            assert relative_error(one.gradients, other.gradients, floor=problem.floor) <= problem.tolerance, (
                where
            )
            assert relative_error(one.weights, other.weights, floor=problem.floor) <= problem.tolerance, where
            assert relative_error(one.evaluated, other.evaluated, floor=problem.floor) <= problem.tolerance, (
                where
            )
            assert one.loss == pytest.approx(other.loss, rel=problem.tolerance), where
            assert one.weight == pytest.approx(other.weight, rel=problem.tolerance), where
            assert one.metrics == pytest.approx(other.metrics, rel=problem.tolerance), where


def rows_kept_together(problem: Problem, techniques: tuple[Technique, ...], window: Window) -> int:
    step = make_step(problem, techniques)
    return step.seams.batch(Batch.of(window), step.progress, step.seed).group


class Seen:
    """What one window left behind."""

    def __init__(self, step: problems.Step, window: Window) -> None:
        result = step(window)
        assert result.applied
        self.loss, self.weight = result.loss, result.weight
        self.metrics = {name: float(value) for name, value in result.metrics.items()}
        self.gradients = problems.traces(step)
        self.weights = problems.weights(step)
        self.evaluated = problems.evaluated_weights(step)


def trajectory(
    problem: Problem, techniques: tuple[Technique, ...], windows: list[Window], micro_batch: int | None
) -> list[Seen]:
    step = make_step(problem, techniques, micro_batch=micro_batch)
    assert problem.changes_weights or next(step.model.parameters()).dtype == problem.dtype
    return [Seen(step, window) for window in windows]
