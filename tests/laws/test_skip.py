"""Skip: a non-finite or empty window changes no weight, buffer, moment, average or schedule; a loss scale alone moves."""

from __future__ import annotations

import math

import pytest
import torch

from snugfit.core.batch import IGNORE_INDEX
from snugfit.core.technique import RollBack, Technique
from snugfit.errors import DataError
from snugfit.tools.certify import technique_laws
from snugfit.tools.certify.technique_laws import BAD, COUNTED, besides_scale, changed
from tests.laws import problems
from tests.laws.problems import make_step, saved

CASES = problems.cases(problems.singles_and_together(), problems.suitable, problems.with_batch_norm)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_bad_windows_change_nothing(
    problem: problems.Maker, techniques: tuple[Technique, ...], micro_batch: int | None
) -> None:
    law = technique_laws.skip(problem(techniques), techniques, [micro_batch])
    assert law.verdict == "held", (law.figures, law.worst, law.reasons)


@pytest.mark.parametrize("techniques", problems.singles_and_together(), ids=problems.name_of)
def test_a_window_that_raises_changes_nothing(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    first, second, _ = problem.windows()
    broken = {**second, "labels": second["labels"].clone()}
    last = broken["labels"][-1]
    # no such class, where a label counts: raises in the last micro-batch
    broken["labels"][-1] = torch.where(last == IGNORE_INDEX, last, 10**6) if last.ndim else 10**6
    step = make_step(problem, techniques, micro_batch=3)
    step(first)
    before = saved(step)
    with pytest.raises((DataError, IndexError), match="Target 1000000 is out of bounds"):
        step(broken)
    assert not changed(before, saved(step))
    assert not problems.gradients(step), "gradients of an aborted pass are left"


@pytest.mark.parametrize("techniques", problems.singles_and_together(), ids=problems.name_of)
def test_a_gradient_that_is_not_finite_under_a_finite_loss_changes_nothing(
    techniques: tuple[Technique, ...],
) -> None:
    problem = problems.main(techniques)
    first, second, _ = problem.windows()
    step = make_step(problem, techniques, micro_batch=3)
    step(first)
    before = saved(step)
    trained = next(parameter for parameter in step.parameters if parameter.requires_grad)
    overflow = trained.register_hook(lambda gradient: gradient * math.inf)
    result = step(second)
    overflow.remove()
    assert math.isfinite(result.loss) and not result.applied
    if step.seams.irrevocable:  # other weights had been updated by then: only going back undoes that
        assert isinstance(result.refusal, RollBack)
        assert not problems.gradients(step)
        step.load_state_dict(before)
    assert besides_scale(step.seams, changed(before, saved(step))) <= COUNTED
    assert step(second).applied


def test_the_bad_windows_are_bad_for_a_loop_without_a_guard() -> None:
    problem = problems.reader(())
    for name, bad in BAD.items():
        step = make_step(problem, ())
        window = bad(problem.windows()[0])
        outputs = step.model(**{key: value for key, value in window.items() if key != "labels"})
        loss = torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), window["labels"].flatten())
        assert not loss.isfinite(), name
