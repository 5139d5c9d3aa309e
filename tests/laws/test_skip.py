"""Skip: a non-finite or empty window changes no weight, buffer, moment, average or schedule; a loss scale alone moves."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from snugfit.core.batch import IGNORE_INDEX
from snugfit.core.technique import RollBack, Technique
from snugfit.errors import DataError
from tests.laws import problems
from tests.laws.problems import (
    Problem,
    Window,
    besides_scale,
    differences,
    make_step,
    poisoned,
    saved,
    unlabelled,
)

BAD: dict[str, Callable[[Window], Window]] = {
    "nan": lambda window: poisoned(window, math.nan),
    "infinite": lambda window: poisoned(window, math.inf),
    "unlabelled": unlabelled,
}

COUNTED = {"/progress/windows", "/progress/skipped", "/progress/examples", "/inputs/copied", "/padding/cut"}

CASES = problems.cases(problems.singles_and_together(), problems.suitable, problems.with_batch_norm)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_bad_windows_change_nothing(
    problem: problems.Maker, techniques: tuple[Technique, ...], micro_batch: int | None
) -> None:
    bad_windows_change_nothing(problem(techniques), techniques, micro_batch)


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
        assert isinstance(result.refused, RollBack)
        assert not problems.gradients(step)
        step.load_state_dict(before)
    assert besides_scale(step, changed(before, saved(step))) <= COUNTED
    assert step(second).applied


def bad_windows_change_nothing(
    problem: Problem, techniques: tuple[Technique, ...], micro_batch: int | None
) -> None:
    first, second, third = problem.windows()
    # token ids are always finite
    bad = [BAD[name](second) for name in (BAD if problem.floats else ["unlabelled"] * 3)]
    skipping = make_step(problem, techniques, micro_batch=micro_batch)
    never = make_step(problem, techniques, micro_batch=micro_batch)
    may_draw = any({"batch", "adjust"} & {*technique.card.seams} for technique in techniques)
    skips(skipping, bad[0])
    for window, bad_window in zip((first, third), bad[1:], strict=True):
        if may_draw:  # and draws are of the window's number
            never.progress.windows = skipping.progress.windows
        one, other = skipping(window), never(window)
        assert one.applied and other.applied
        assert one.learning_rate == other.learning_rate, "the schedule has moved on"
        skips(skipping, bad_window)
    assert not changed(never.state_dict()["optimizer"], skipping.state_dict()["optimizer"])
    assert not differences(problems.weights(never), problems.weights(skipping))
    assert not differences(problems.evaluated_weights(never), problems.evaluated_weights(skipping))
    assert never.progress.updates == skipping.progress.updates == 2
    assert skipping.progress.skipped == 3


def skips(step: problems.Step, window: Window) -> None:
    before = saved(step)
    result = step(window)
    assert not result.applied
    assert not result.metrics
    moved = changed(before, saved(step))
    if result.weight == 0:
        assert result.loss == 0
    # an empty window says nothing about the scale of the loss
    assert (besides_scale(step, moved) if result.weight > 0 else moved) <= COUNTED
    assert not problems.gradients(step), "gradients of a skipped window are left"


def changed(before: object, after: object) -> set[str]:
    """Paths that differ; the rate and the momentum of the next update may already be set."""
    return {
        path for path in differences(before, after) if not path.endswith(("/lr", "/momentum", "/betas/0"))
    }


def test_the_bad_windows_are_bad_for_a_loop_without_a_guard() -> None:
    problem = problems.reader(())
    for name, bad in BAD.items():
        step = make_step(problem, ())
        window = bad(problem.windows()[0])
        outputs = step.model(**{key: value for key, value in window.items() if key != "labels"})
        loss = torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), window["labels"].flatten())
        assert not loss.isfinite(), name
