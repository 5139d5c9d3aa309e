"""Split: any micro-batch split of a window gives the same gradient and the same update."""

from __future__ import annotations

import pytest

from snugfit.core.technique import Technique
from snugfit.tools.certify import technique_laws
from tests.laws import problems
from tests.laws.problems import make_step, relative_error

CASES = problems.cases(problems.singles_and_together(), problems.suitable)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
def test_any_split_of_a_window_gives_the_same_update(
    problem: problems.Maker, techniques: tuple[Technique, ...]
) -> None:
    law = technique_laws.split(problem(techniques), techniques)
    if any(technique.card.couples_examples for technique in techniques):
        pytest.skip("its card says that it couples the examples of a micro-batch")
    assert law.verdict == "held", (law.figures, law.worst, law.reasons)


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
