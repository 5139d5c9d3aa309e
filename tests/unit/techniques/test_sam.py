from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.core.gradients import Gradients
from snugfit.techniques.learning import sam
from snugfit.techniques.learning.sam import SAM, perturbed
from tests.unit.techniques.settings import context, parameter, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_radius_is_refused(value: float) -> None:
    refuses(SAM, rho=value)


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
