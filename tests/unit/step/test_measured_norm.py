"""With `clip_norm` the norm of the gradients says whether they are finite, and whether they are touched at all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.technique import Technique
from snugfit.step.step import Step, StepResult
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.clip_value import ClipValue
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD

INPUTS, ROWS = 3, 4


class Passes(TorchDispatchMode):
    """Counts what reads or writes every gradient: looks for what is not finite, norms and products, by the tensors that they take."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if name in ("_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm", "_foreach_mul_"):
            self.tensors[name] += sum(each.ndim > 0 for each in args[0])
        return func(*args, **(kwargs or {}))


def trained(*techniques: Technique, factor: float = 1.0) -> tuple[StepResult, Counter[str], Tensor]:
    """An update of the mean of a linear model's outputs times a factor; what it did with its gradients, and the weights after it."""
    torch.manual_seed(0)
    step = Step(
        nn.Linear(INPUTS, 1), SGD(learning_rate=1.0), lambda outputs, _: factor * outputs[:, 0], techniques
    )
    with Passes() as passes:
        result = step((torch.ones(ROWS, INPUTS), torch.zeros(ROWS)))
    return result, passes.tensors, torch.cat([each.detach().flatten() for each in step.parameters])


def test_gradients_within_the_bound_are_read_once_and_not_written() -> None:
    result, passes, _ = trained(ClipNorm(100.0))
    assert result.applied and passes["_foreach_norm"] == 2
    assert passes["_foreach_mul_"] == passes["_amp_foreach_non_finite_check_and_unscale_"] == 0
    assert float(result.metrics["gradient_norm"]) == 2.0  # of four ones


def test_gradients_beyond_the_bound_get_its_length() -> None:
    before = torch.cat([each.detach().flatten() for each in _net().parameters()])
    result, _, after = trained(ClipNorm(0.5))
    torch.testing.assert_close(before - after, torch.full((4,), 0.25))
    assert result.applied and float(result.metrics["gradient_norm"]) == 2.0


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(INPUTS, 1)


@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_a_gradient_that_is_not_finite_is_refused(factor: float) -> None:
    before = torch.cat([each.detach().flatten() for each in _net().parameters()])
    result, _, after = trained(ClipNorm(), factor=factor)
    assert not result.applied and torch.equal(before, after)


def test_a_gradient_is_finite_whose_norm_overflows() -> None:
    result, passes, _ = trained(ClipNorm(), factor=1e30)
    assert result.applied and float(result.metrics["gradient_norm"]) == float("inf")
    assert (
        passes["_amp_foreach_non_finite_check_and_unscale_"] == 2
    )  # looked at one by one, as the norm does not say it


@pytest.mark.parametrize("first", [ClipValue(0.5), SAM(rho=0.05)], ids=lambda each: each.card.name)
def test_the_norm_is_that_of_the_gradients_which_are_clipped(first: Technique) -> None:
    """Techniques that change them first, or compute them otherwise, leave no norm that was measured before."""
    before = torch.cat([each.detach().flatten() for each in _net().parameters()])
    result, _, after = trained(first, ClipNorm(100.0))
    assert float(result.metrics["gradient_norm"]) == pytest.approx(float((before - after).norm()), rel=1e-5)
