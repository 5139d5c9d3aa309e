from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.parameters import parameter_groups
from snugfit.core.technique import Technique
from snugfit.kit.optimizers.one_by_one import Route, ShadowOptimizer, standing_in, stepped_by_element, stepper
from snugfit.techniques import discover
from tests.laws.compare import differences, tensors
from tests.unit.techniques.settings import context

OPTIMIZERS = [  # that may be stepped one parameter at a time
    each
    for each in discover().values()
    if "optimizer" in each.card.seams and "stepping" not in each.card.refuses
]


class Doubled(ShadowOptimizer):
    """Steps on copies in float64."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, lambda own: torch.float64)

    def lend_wide(
        self, parameter: nn.Parameter, weight: Tensor, gradient: Tensor, own: dict[str, Any], parts: range
    ) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        shadow = self.shadows[parameter]
        stand_in = standing_in(shadow, weight.double(), gradient.double())
        yield shadow, stand_in
        weight.copy_(stand_in)


def model_of(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(7, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 7))


def made(technique: type[Technique], model: nn.Module) -> torch.optim.Optimizer:
    make = technique.example().seams(context(model, total_updates=10)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def backward(model: nn.Module, update: int) -> None:
    model.zero_grad()
    model(torch.arange(7) if update else torch.arange(3)).square().sum().backward()


@pytest.mark.parametrize("technique", OPTIMIZERS, ids=lambda each: each.card.name)
def test_one_parameter_after_the_other_is_the_whole_step_bit_for_bit(technique: type[Technique]) -> None:
    """Whatever the optimizer counts in its groups it counts once, in the step without a gradient that ends the update."""
    agree_one_by_one(lambda model: made(technique, model))


def agree_one_by_one(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    whole, single = model_of(), model_of()
    at_once, alone = make(whole), make(single)
    for update in range(4):
        backward(whole, update), backward(single, update)
        at_once.step()
        step = stepper(alone)
        for parameter in reversed(list(single.parameters())):  # as backward comes by them
            step(parameter)
            parameter.grad = None
        alone.step()
    assert not differences(dict(whole.named_parameters()), dict(single.named_parameters()))
    assert not differences(at_once.state_dict(), alone.state_dict())


@pytest.mark.parametrize("technique", OPTIMIZERS, ids=lambda each: each.card.name)
def test_a_parameter_that_is_stepped_leaves_the_others_alone(technique: type[Technique]) -> None:
    model = model_of()
    optimizer = made(technique, model)
    backward(model, 1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    stepper(optimizer)(model.get_parameter("1.weight"))
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == {"1.weight"}


def test_an_optimizer_that_fails_has_its_groups_again() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    groups = optimizer.param_groups
    optimizer.register_step_post_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stepper(optimizer)(model.get_parameter("1.weight"))
    assert optimizer.param_groups is groups


def test_shadows_are_stepped_in_their_own_type_and_hold_nothing_between_two_steps() -> None:
    model, wide = model_of(), model_of().double()
    optimizer = Doubled(torch.optim.AdamW(model.parameters(), lr=0.1))
    plain = torch.optim.AdamW(wide.parameters(), lr=0.1)
    backward(model, 1), backward(wide, 1)
    optimizer.step(), plain.step()
    for one, other in zip(model.parameters(), wide.parameters(), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
    assert all(shadow.numel() == 0 and shadow.grad is None for shadow in optimizer.shadows.values())
    state = optimizer.state_dict()["state"]
    assert {value.dtype for value in tensors(state).values() if value.ndim} == {torch.float64}


class Counting(Route):
    """Brings copies of gradients, and counts those from before that are still there."""

    def __init__(self) -> None:
        self.brought: list[weakref.ref[Tensor]] = []
        self.still_there: list[int] = []

    def bring(self, parameters: Any, gradient_of: Any) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        for parameter in parameters:
            self.still_there.append(sum(each() is not None for each in self.brought))
            weight, gradient = parameter.detach(), gradient_of(parameter).clone()
            self.brought += [weakref.ref(weight), weakref.ref(gradient)]
            yield parameter, weight, gradient
            del weight, gradient


@pytest.mark.parametrize("kind", [ShadowOptimizer, Doubled])
def test_what_was_brought_for_a_step_is_gone_when_the_next_comes(kind: type[ShadowOptimizer]) -> None:
    """Gradients from the host come one at a time: a device that holds two holds those of two tables of embeddings."""
    model = model_of()
    optimizer = kind(torch.optim.AdamW(model.parameters(), lr=0.1))
    optimizer.route = route = Counting()
    for update in range(2):
        backward(model, update)
        optimizer.step()
    assert len(route.still_there) > 4 and not any(route.still_there)


SHADOWED = [  # schedule_free has a state from the beginning
    each for each in OPTIMIZERS if each.card.name != "schedule_free"
]


@pytest.mark.parametrize("technique", SHADOWED, ids=lambda each: each.card.name)
def test_one_shadow_after_the_other_is_the_whole_step_bit_for_bit(technique: type[Technique]) -> None:
    agree_one_by_one(lambda model: Doubled(made(technique, model)))


OF_POWERS = {"madgrad": 3 * 2 * 2**-23}
"""Torch computes a power at the end of a tensor by another function than within it, and the two differ in the last place: what these
optimizers may differ by, here a unit in the last place of weights below 4 for each of three updates."""


@pytest.mark.parametrize("technique", OPTIMIZERS, ids=lambda each: each.card.name)
def test_what_is_said_to_be_stepped_by_element_is_so(technique: type[Technique]) -> None:
    """Half of the rows alone, with their half of the gradients, comes to what they come to in the whole."""
    whole, half = model_of(), model_of()
    half.get_submodule("0").weight = nn.Parameter(half.get_parameter("0.weight").detach()[3:])
    at_once, alone = made(technique, whole), made(technique, half)
    if whole.get_parameter("0.weight") not in stepped_by_element(at_once):
        assert technique.card.name in ("adafactor", "adamw_4bit", "adamw_8bit", "muon", "schedule_free")
        return
    for update in range(3):
        backward(whole, update)
        for part, full in zip(half.parameters(), whole.parameters(), strict=True):
            assert full.grad is not None
            part.grad = full.grad[-len(part) :].clone()
        at_once.step(), alone.step()
    stepped, expected = half.get_parameter("0.weight"), whole.get_parameter("0.weight")[3:]
    if technique.card.name in OF_POWERS:
        torch.testing.assert_close(stepped, expected, rtol=0, atol=OF_POWERS[technique.card.name])
    else:
        assert torch.equal(stepped, expected)


def test_clearing_gradients_clears_those_of_the_parameters() -> None:
    model = model_of()
    optimizer = Doubled(torch.optim.SGD(model.parameters(), lr=0.1))
    backward(model, 1)
    optimizer.zero_grad(set_to_none=False)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_rate_that_is_set_in_a_group_is_used_before_and_after_loading() -> None:
    model = model_of()
    optimizer = Doubled(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        before = [parameter.detach().clone() for parameter in model.parameters()]
        backward(model, 1)
        optimizer.step()
        assert all(map(torch.equal, before, model.parameters()))
        optimizer.load_state_dict(optimizer.state_dict())


def test_a_closure_is_called_once_with_gradients_on() -> None:
    model = model_of()
    losses = []

    def closure() -> Tensor:
        losses.append(model(torch.arange(7)).square().sum())
        losses[-1].backward()
        return losses[-1]

    before = model.get_parameter("1.weight").detach().clone()
    assert Doubled(torch.optim.SGD(model.parameters(), lr=0.1)).step(closure) is losses[0]
    assert len(losses) == 1 and not torch.equal(before, model.get_parameter("1.weight"))


def test_a_state_of_another_model_is_refused() -> None:
    one = Doubled(torch.optim.SGD(model_of().parameters(), lr=0.1))
    other = Doubled(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(ValueError, match="doesn't match the size"):
        other.load_state_dict(one.state_dict())
