from __future__ import annotations

import dataclasses
import math
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.losses import InfoNCE
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning import sam
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.sam import SAM, perturbed
from tests.laws import problems
from tests.laws.problems import differences, make_step, poisoned, relative_error, saved, unlabelled
from tests.oracles import sam as oracle
from tests.oracles.loop import take
from tests.unit.techniques.settings import context, parameter, refuses

ROWS = (7, 6, 7, 5)
# float64, added up in another order
TOLERANCE = 1e-10


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_radius_is_refused(value: float) -> None:
    refuses(SAM, rho=value)


@pytest.mark.parametrize("value", [0, -2])
def test_an_impossible_group_is_refused(value: int) -> None:
    refuses(SAM, m=value)


def test_the_perturbation_goes_along_the_gradient_of_all_parameters_and_is_rho_long() -> None:
    weights = [parameter([1.0], [3.0]), parameter([2.0, 5.0], [0.0, 4.0]), parameter([9.0])]
    with perturbed(weights, rho=0.5):
        moved = [weight.tolist() for weight in weights]
    assert moved == [[pytest.approx(1.3)], [2.0, pytest.approx(5.4)], [9.0]]


def test_the_adaptive_perturbation_scales_with_each_weight() -> None:
    """`ρ·|w|²g / ‖|w|g‖` (arXiv:2102.11600, equation 3, with the elementwise operator)."""
    w, g, rho = [2.0, -1.0, 0.0], [1.0, 3.0, 5.0], 0.5
    length = math.sqrt(sum((abs(a) * b) ** 2 for a, b in zip(w, g, strict=True)))
    weight = parameter(w, g)
    with perturbed([weight], rho, adaptive=True):
        expected = [a + rho * a * a * b / length for a, b in zip(w, g, strict=True)]
        assert weight.tolist() == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("adaptive", [False, True])
def test_weights_are_restored_bit_for_bit_where_subtraction_would_round(adaptive: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(1000, generator=generator))
    weight.grad = torch.randn(1000, generator=generator)
    before = weight.detach().clone()
    with perturbed([weight], 0.05, adaptive):
        assert not torch.equal(weight, before)
    assert torch.equal(weight, before)
    step = 0.05 * weight.grad / weight.grad.norm()
    assert not torch.equal(before + step - step, before), "these weights would survive a subtraction"


def test_weights_are_restored_when_the_second_pass_fails() -> None:
    weight = parameter([1.0], [1.0])
    with pytest.raises(ZeroDivisionError), perturbed([weight], rho=0.5):
        raise ZeroDivisionError
    assert weight.tolist() == [1.0]


def test_weights_are_restored_when_memory_runs_out_while_they_are_moved() -> None:
    weights = [parameter([1.0], [1.0]), parameter([2.0], [1.0])]

    class Full(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function is torch.Tensor.add_ and args[0] is weights[1]:
                raise torch.OutOfMemoryError
            return function(*args, **(kwargs or {}))

    with Full(), pytest.raises(torch.OutOfMemoryError), perturbed(weights, rho=0.5):
        pytest.fail("it was entered")
    assert [weight.tolist() for weight in weights] == [[1.0], [2.0]]


def test_a_gradient_of_zero_moves_nothing() -> None:
    weight = parameter([1.0, 2.0], [0.0, 0.0])
    with perturbed([weight], rho=0.5):
        assert weight.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("weight", "nonfinite"), [(0.0, 0.0), (1.0, 1.0)])
def test_it_does_not_perturb_after_an_unusable_first_pass(
    weight: float, nonfinite: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Gradients(torch.tensor(1.0), weight, torch.tensor(nonfinite))
    passes = []
    monkeypatch.setattr(sam, "perturbed", lambda *_: pytest.fail("it has perturbed"))
    seams = SAM().seams(context())
    assert seams.gradients is not None
    found = seams.gradients(lambda compute: passes.append(1) or first)(None)  # type: ignore[arg-type, func-returns-value]
    assert found is first
    assert len(passes) == 1


def test_the_loss_is_the_one_at_the_weights_and_not_at_the_worst_point() -> None:
    passes = iter(
        [
            Gradients(torch.tensor(1.0), 1.0, torch.tensor(0.0)),
            Gradients(torch.tensor(9.0), 1.0, torch.tensor(0.0)),
        ]
    )
    seams = SAM().seams(context())
    assert seams.gradients is not None
    assert float(seams.gradients(lambda compute: next(passes))(None).loss) == 1.0  # type: ignore[arg-type]


def test_a_second_pass_that_is_not_finite_says_so() -> None:
    passes = iter(
        [
            Gradients(torch.tensor(1.0), 1.0, torch.tensor(0.0)),
            Gradients(torch.tensor(9.0), 1.0, torch.tensor(1.0)),
        ]
    )
    seams = SAM().seams(context())
    assert seams.gradients is not None
    assert not seams.gradients(lambda compute: next(passes))(None).usable()  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("m", [1, 3, 100])
@pytest.mark.parametrize("micro_batch", [None, 1, 2, 4])
def test_groups_train_as_the_loop_of_the_paper_whatever_the_split(
    m: int, micro_batch: int | None, adaptive: bool
) -> None:
    technique = SAM(rho=0.2, m=m, adaptive=adaptive)
    problem = problems.reader(())
    windows = problem.windows(rows=ROWS)
    step = make_step(problem, (technique,), micro_batch=micro_batch, momentum=0.0)
    losses = [step(window).loss for window in windows]
    expected = oracle.train(problem.model(), windows, dataclasses.asdict(technique), problems.TOTAL_UPDATES)
    assert losses == pytest.approx(expected.losses, rel=TOLERANCE)
    assert relative_error(problems.weights(step), expected.weights) <= TOLERANCE


def test_groups_differ_from_the_whole_window() -> None:
    problem = problems.reader(())
    window = problem.windows()[0]
    steps = [make_step(problem, (SAM(rho=0.2, m=m),)) for m in (None, 3, 2)]
    for step in steps:
        step(window)
    whole, threes, twos = map(problems.gradients, steps)
    assert relative_error(threes, whole) > 0.01
    assert relative_error(twos, threes) > 0.01


INSIDE: list[Technique] = [HardExamples(fraction=0.6), GradientCache()]


@pytest.mark.parametrize("inside", INSIDE, ids=problems.name_of)
@pytest.mark.parametrize("micro_batch", [None, 2])
def test_to_what_is_inside_each_group_is_a_window_of_its_own(
    inside: Technique, micro_batch: int | None
) -> None:
    """The hardest of each group are kept, and its rows contrasted with each other: the mean over steps of one group."""
    problem = problems.reader((inside,))
    window = problem.windows(rows=(6,))[0]
    step = make_step(problem, (SAM(rho=0.2, m=3), inside), micro_batch=micro_batch)
    whole = step(window)
    loss, total = 0.0, dict[str, torch.Tensor]()
    for rows in ([0, 1, 2], [3, 4, 5]):
        alone = make_step(problem, (SAM(rho=0.2), inside))
        found = alone(take(window, rows))
        loss += found.loss * found.weight / whole.weight
        for name, gradient in problems.gradients(alone).items():
            total[name] = total.get(name, 0) + gradient * found.weight / whole.weight
    assert whole.loss == pytest.approx(loss, rel=TOLERANCE)
    assert relative_error(problems.gradients(step), total) <= TOLERANCE


@pytest.mark.parametrize("bad", [lambda window: poisoned(window, math.nan), unlabelled])
def test_a_window_with_a_bad_group_changes_nothing(bad: Any) -> None:
    problem = problems.reader(())
    first, second, _ = problem.windows()
    step = make_step(problem, (SAM(rho=0.2, m=3),), micro_batch=2)
    step(first)
    before = saved(step)
    assert not step(bad(second)).applied
    changed = {path for path in differences(before, saved(step)) if not path.endswith("/lr")}
    assert changed <= {f"/progress/{name}" for name in ("windows", "skipped", "examples")}
    assert step(second).applied


def test_a_group_without_labels_counts_for_nothing() -> None:
    problem = problems.reader(())
    window = problem.windows(rows=(6,))[0]
    window["labels"][3:] = problems.IGNORED
    groups, half = (make_step(problem, (SAM(rho=0.2, m=m),)) for m in (3, None))
    assert groups(window).weight == half(take(window, [0, 1, 2])).weight
    assert relative_error(problems.gradients(groups), problems.gradients(half)) <= TOLERANCE


def test_each_group_drops_other_units() -> None:
    problem = problems.viewer(())
    step = make_step(problem, (SAM(m=2),), dropout=0.5)
    masks: list[torch.Tensor] = []
    step.model.dropout.register_forward_hook(
        lambda module, inputs, output: masks.append(output.detach() != 0)
    )  # type: ignore[union-attr, operator]
    step(problem.windows(rows=(4,))[0])
    first, first_again, second, second_again = masks
    assert torch.equal(first, first_again) and torch.equal(second, second_again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("m", "groups"), [(None, [[0, 1, 2, 3, 4, 5]]), (2, [[0, 1], [2, 3], [4, 5]])])
def test_batch_norm_takes_its_statistics_from_the_first_pass_over_each_group(
    m: int | None, groups: list[list[int]]
) -> None:
    """At the weights before the update, in order, once for each group; the passes at the worst points leave none."""
    problem = problems.normed(())
    window = problem.windows(rows=(6,))[0]
    step = make_step(problem, (SAM(rho=0.5, m=m),))
    alone = problem.model()
    with torch.no_grad():
        for rows in groups:
            alone(window["numbers"][rows])
    assert step(window).applied
    norm, expected = step.model.body[1], alone.body[1]  # type: ignore[index, union-attr]
    assert int(norm.num_batches_tracked) == len(groups)
    torch.testing.assert_close(norm.running_mean, expected.running_mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(norm.running_var, expected.running_var, rtol=1e-12, atol=1e-14)


def test_the_statistics_of_a_refused_window_are_taken_back() -> None:
    problem = problems.normed(())
    step = make_step(problem, (SAM(m=2),))
    before = saved(step)["buffers"]
    assert not step(poisoned(problem.windows(rows=(6,))[0], math.nan)).applied
    assert not differences(before, saved(step)["buffers"])


def test_groups_keep_together_what_was_mixed() -> None:
    problem = problems.reader(())
    batch = dataclasses.replace(Batch.of(problem.windows(rows=(6,))[0]), group=2)
    with pytest.raises(SettingError, match=r"^sam\.m: is 3, and examples are mixed in groups of 2"):
        make_step(problem, (SAM(m=3),))(batch)
    assert make_step(problem, (SAM(m=4),))(batch).applied


def test_a_loss_that_compares_rows_is_not_shown_a_part_of_them() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(SettingError, match=r"^sam\.m: the loss compares the rows"):
        Step(model, torch.optim.SGD(model.parameters()), InfoNCE(), [SAM(m=2)])
    Step(model, torch.optim.SGD(model.parameters()), InfoNCE(), [SAM()])


def test_the_gradients_of_the_first_pass_are_not_held_during_the_second() -> None:
    weight = parameter([1.0, 2.0], [3.0, 4.0])
    held = weakref.ref(weight.grad)
    with perturbed([weight], rho=0.5):
        weight.grad = None
        assert held() is None


def test_a_row_left_over_by_the_groups_does_not_reach_batch_norm_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=[SAM(m=4)])
    seen: list[int] = []
    model[1].register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    assert step((torch.randn(9, 4), torch.randint(0, 2, (9,)))).applied
    assert seen == [4, 4, 5, 5]
    with pytest.raises(SettingError, match=r"sam\.m: is 1, and the model has batch norm"):
        Step(model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=[SAM(m=1)])
