"""Parameters that are handed over as soon as their gradient is whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn

from snugfit.core.technique import Card, Context, Family, GradientsOf, Seams, Stage, Technique
from snugfit.errors import PlanConflict
from snugfit.techniques import find
from tests.laws import problems
from tests.laws.models import Recomputing
from tests.laws.problems import make_step, poisoned, relative_error


@dataclass(frozen=True)
class Handing(Technique):
    """Gives each parameter to `take`."""

    take: Callable[[nn.Parameter], None]
    card: ClassVar[Card] = Card("handing", "A test.", Family.PLACEMENT, "", ("gradients",), (Stage.BACKEND,))

    def seams(self, context: Context) -> Seams:
        def wrap(gradients: GradientsOf) -> GradientsOf:
            return lambda compute: gradients(compute.handing(self.take))

        return Seams(gradients=wrap)


@pytest.mark.parametrize("micro_batch", [None, 3, 1])
@pytest.mark.parametrize("others", [(), ("fp16",), ("hard_examples",)], ids=str)
def test_each_parameter_comes_once_with_its_true_gradient(
    micro_batch: int | None, others: tuple[str, ...]
) -> None:
    problem = problems.reader(())
    window = problem.windows()[0]
    found: dict[int, torch.Tensor] = {}

    def take(parameter: nn.Parameter) -> None:
        assert id(parameter) not in found and parameter.grad is not None
        found[id(parameter)] = parameter.grad.clone()

    rest = [find(name).example() for name in others]
    handing = make_step(problem, [Handing(take), *rest], micro_batch=micro_batch, nominal=5.0)
    plain = make_step(problem, rest)
    assert handing(window).applied and plain(window).applied
    names = {id(parameter): name for name, parameter in handing.model.named_parameters()}
    given = {names[key]: gradient for key, gradient in found.items()}
    assert relative_error(given, problems.gradients(plain)) <= 1e-10


def test_what_is_taken_away_is_not_there_for_the_optimizer() -> None:
    def take(parameter: nn.Parameter) -> None:
        parameter.grad = None

    problem = problems.reader(())
    step = make_step(problem, [Handing(take)])
    before = problems.weights(step)
    assert step(problem.windows()[0]).applied
    assert relative_error(problems.weights(step), before) == 0


@pytest.mark.parametrize("bad", [lambda window: poisoned(window, float("nan")), problems.unlabelled])
def test_a_window_to_learn_nothing_from_hands_over_nothing(
    bad: Callable[[problems.Window], problems.Window],
) -> None:
    taken: list[nn.Parameter] = []
    problem = problems.reader(())
    step = make_step(problem, [Handing(taken.append)], micro_batch=3)
    assert not step(bad(problem.windows()[0])).applied
    assert not taken and not problems.gradients(step)


def test_a_gradient_that_is_not_finite_makes_no_update() -> None:
    problem = problems.reader(())
    step = make_step(problem, [Handing(lambda parameter: setattr(parameter, "grad", None))])
    step.parameters[0].register_hook(lambda gradient: gradient * float("inf"))
    assert not step(problem.windows()[0]).applied


def test_a_gradient_that_comes_in_two_parts_is_refused_and_not_taken_for_whole() -> None:
    """Torch's reentrant checkpoint runs a backward of its own for each use of a block."""
    taken: list[nn.Parameter] = []
    given = problems.viewer(())
    again = replace(given, make_model=partial(Recomputing, use_reentrant=True))
    with pytest.raises(PlanConflict, match="comes more than once in one backward.* use_reentrant=False"):
        make_step(again, [Handing(taken.append)])(given.windows()[0])
    assert len(taken) == len(set(taken))
