from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.core.selection import check
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.placement.optimizer_offload import OptimizerOffload, ToHost, offloaded
from tests.laws import problems
from tests.laws.compare import tensors
from tests.laws.problems import differences, make_step, saved
from tests.unit.techniques.settings import optimizers_beside

OPTIMIZERS = optimizers_beside(OptimizerOffload)
WINDOW = (torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("make", [problems.reader, problems.gpt2], ids=problems.name_of)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_weights_and_checkpoints_are_those_of_the_optimizer_on_the_device(
    optimizer: Technique, make: problems.Maker
) -> None:
    """Bit for bit, so that a run may go on with it or without it; and no weight is in the state a second time."""
    problem = make((optimizer,))
    plain, offloaded = (
        make_step(problem, [optimizer, *more], micro_batch=3, dtype=torch.float32)
        for more in ((), (OptimizerOffload(),))
    )
    for number, window in enumerate(problem.windows(torch.float32)):
        assert plain(window).applied and offloaded(window).applied
        assert not differences(saved(plain), saved(offloaded))
        if number == 0:  # each goes on with the state of the other
            states = saved(plain), saved(offloaded)
            plain.load_state_dict(states[1]), offloaded.load_state_dict(states[0])


@pytest.mark.parametrize("name", ["ema", "swa", "lookahead", "sam", "freeze", "gradual_unfreeze", "lora"])
def test_what_moves_weights_elsewhere_is_not_undone_by_what_the_host_has(name: str) -> None:
    others = (find(name).example(), AdamW(learning_rate=0.01))
    problem = problems.main(others)
    plain, offloaded = (make_step(problem, [*others, *more]) for more in ((), (OptimizerOffload(),)))
    for window in problem.windows():
        assert plain(window).applied and offloaded(window).applied
        evaluated = [problems.evaluated_weights(step) for step in (plain, offloaded)]  # swapped in and out
        assert not differences(*evaluated)
    assert not differences(saved(plain), saved(offloaded))


def test_a_weight_that_is_set_by_hand_is_where_the_next_step_begins() -> None:
    model = nn.Linear(2, 2)
    step = Step(model, find("sgd")(learning_rate=0.1, momentum=0.0), techniques=[OptimizerOffload()])
    step(WINDOW)
    model.weight.data.fill_(5.0)  # of which autograd keeps no count
    step(WINDOW)
    assert model.weight.grad is not None
    torch.testing.assert_close(model.weight.detach(), 5.0 - 0.1 * model.weight.grad, rtol=0, atol=1e-6)


def test_states_are_on_the_host_from_the_first_step_on_and_after_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a device that is fake: its tensors have a place and no numbers."""
    # autograd asks for the device when a leaf that is on it is written to
    monkeypatch.setattr(ToHost, "give_back", lambda *_: None)
    with FakeTensorMode():
        weights = [nn.Parameter(torch.empty(3, size, device="cuda")) for size in (2, 5, 4)]
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = offloaded(torch.optim.AdamW(weights, foreach=False))
        for _ in range(2):
            optimizer.step()
            found = tensors(optimizer.state_dict()["state"]).values()
            assert len(found) == 9 and {tensor.device.type for tensor in found} == {"cpu"}
            optimizer.load_state_dict(optimizer.state_dict())
        assert {weight.device.type for weight in weights} == {"cuda"}


def test_the_host_holds_two_parameters_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from snugfit.techniques.placement import optimizer_offload

    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(6)))
    optimizer = offloaded(torch.optim.SGD(model.parameters(), lr=0.1))
    order: list[str] = []
    of, give_back = optimizer_offload._Coming.of, ToHost.give_back
    monkeypatch.setattr(optimizer_offload._Coming, "of", lambda *args: (order.append("comes"), of(*args))[1])
    monkeypatch.setattr(ToHost, "give_back", lambda *args: (order.append("goes"), give_back(*args))[1])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    held = [order[:place].count("comes") - order[:place].count("goes") for place in range(len(order) + 1)]
    assert order.count("comes") == order.count("goes") == 6
    assert max(held) == 2


def test_without_any_gradient_a_step_does_nothing() -> None:
    model = nn.Linear(2, 2)
    optimizer = offloaded(torch.optim.AdamW(model.parameters()))
    before = model.weight.detach().clone()
    optimizer.step()
    assert torch.equal(before, model.weight) and not optimizer.state_dict()["state"]


def test_parameters_that_never_have_a_gradient_cost_nothing_on_the_host() -> None:
    model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2))
    step = Step(model, AdamW(), techniques=[OptimizerOffload()])
    step(WINDOW)
    assert set(saved(step)["optimizer"]["state"]) == {1, 3}
    assert isinstance(step.optimizer, ShadowOptimizer)
    assert all(shadow.untyped_storage().nbytes() == 0 for shadow in step.optimizer.shadows.values())


def test_schedule_free_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanConflict, match=r"the weights to evaluate from its own state.*Remove one"):
        check([OptimizerOffload(), find("schedule_free").example()])
