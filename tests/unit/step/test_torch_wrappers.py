"""Torch's step and backward without their wrappers: the same numbers, and whoever listens is heard."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd import graph as autograd_graph
from torch.optim.optimizer import (
    _use_grad_for_differentiable,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from snugfit.step import torch_wrappers
from snugfit.step.torch_wrappers import backward, step_optimizer


def _trained(run: Callable[[nn.Module, torch.optim.Optimizer], None]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        run(model, optimizer)
    return list(model.parameters())


def _losses(model: nn.Module) -> Tensor:
    losses: Tensor = model(torch.ones(4, 3)).square().sum(dim=1)
    return losses


def test_the_weights_are_those_of_torchs_own_way() -> None:
    def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        _losses(model).backward(torch.full((4,), 0.25))
        optimizer.step()

    def without_wrappers(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        backward(_losses(model), torch.full((4,), 0.25))
        step_optimizer(optimizer)

    for expected, weights in zip(_trained(plain), _trained(without_wrappers), strict=True):
        assert torch.equal(expected, weights)


def test_torchs_private_functions_are_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one has moved, training goes on by torch's own way, and this test says that it is slower."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(torch.autograd.profiler, "record_function", None)  # torch's wrapper would call it
    monkeypatch.setattr(torch, "set_grad_enabled", None)  # and so would the switch for gradients
    monkeypatch.setattr(autograd_graph, "_engine_run_backward", None)
    engine_calls: list[Any] = []
    engine = SimpleNamespace(run_backward=lambda *given, **_: engine_calls.append(given))
    monkeypatch.setattr(Variable, "_execution_engine", engine)
    monkeypatch.setattr(torch_wrappers, "_only_host", lambda: True)
    backward(_losses(model), torch.ones(4))
    step_optimizer(optimizer)
    assert len(engine_calls) == 1


def test_threads_of_devices_see_the_context_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(autograd_graph, "_engine_run_backward", lambda *given, **_: calls.append(given))
    monkeypatch.setattr(torch_wrappers, "_only_host", lambda: False)
    backward(_losses(nn.Linear(3, 2)), torch.ones(4))
    assert len(calls) == 1


def test_gradients_are_switched_off_in_a_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(torch.optim.SGD):
        """Notes the switch, and fails after that."""

        seen: ClassVar[list[bool]] = []

        @_use_grad_for_differentiable
        def step(self, closure: Any = None) -> None:
            self.seen.append(torch.is_grad_enabled())
            raise ValueError("failed")

    optimizer = Own([nn.Parameter(torch.ones(1))], lr=0.1)
    for differentiable in (False, True):
        optimizer.defaults["differentiable"] = differentiable
        with pytest.raises(ValueError, match="failed"):
            step_optimizer(optimizer)
        assert torch.is_grad_enabled()
        with torch.no_grad(), pytest.raises(ValueError, match="failed"):
            step_optimizer(optimizer)
    assert Own.seen == [False, False, True, True]


@pytest.mark.parametrize("where", ["object", "all", "patched object", "patched class"])
def test_whoever_listens_to_a_step_is_heard(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(torch.optim.SGD):
        pass

    optimizer = Own([nn.Parameter(torch.ones(1))], lr=0.1)
    calls: list[str] = []

    def heard(*_: Any) -> None:
        calls.append(where)

    @functools.wraps(Own.step)
    def patched(*given: Any, **named: Any) -> Any:
        heard()
        return None

    if where == "object":
        optimizer.register_step_pre_hook(heard)
        optimizer.register_step_post_hook(heard)
    elif where == "all":
        handles = register_optimizer_step_pre_hook(heard), register_optimizer_step_post_hook(heard)
    elif where == "patched object":
        monkeypatch.setattr(optimizer, "step", patched)
    else:
        monkeypatch.setattr(Own, "step", patched)
    step_optimizer(optimizer)
    if where == "all":
        for handle in handles:
            handle.remove()
    assert len(calls) == (2 if where in ("object", "all") else 1)


def test_a_profiler_sees_the_step_by_its_name() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with torch.profiler.profile() as profile:
        step_optimizer(optimizer)
    assert "Optimizer.step#SGD.step" in {event.key for event in profile.key_averages()}


@pytest.mark.filterwarnings("error:.*lr_scheduler.step.*")
def test_a_learning_rate_schedule_of_torch_sees_that_the_optimizer_was_stepped() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    step_optimizer(optimizer)
    schedule.step()  # it warns where the optimizer was not stepped before


@pytest.mark.parametrize("patched", [torch.Tensor, torch.autograd])
def test_whoever_listens_to_a_backward_is_heard(patched: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = patched.backward

    @functools.wraps(original)
    def listening(*given: Any, **named: Any) -> Any:
        calls.append("backward")
        return original(*given, **named)

    monkeypatch.setattr(patched, "backward", listening)
    backward(_losses(nn.Linear(3, 2)), torch.ones(4))
    assert calls == ["backward"]


def test_a_subclass_of_tensors_goes_backward_in_its_own_way() -> None:
    class Own(Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            cls.calls += function is Tensor.backward
            return super().__torch_function__(function, types, given, named or {})

    values = copy.copy(torch.ones(2, requires_grad=True)).as_subclass(Own)
    backward(values * 2, torch.ones(2))
    assert Own.calls == 1
