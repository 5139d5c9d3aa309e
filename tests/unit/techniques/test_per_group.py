from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.schedule import Schedule
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.constant import Constant
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.one_cycle import OneCycle
from snugfit.techniques.learning.per_group import PerGroup
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import context

BATCH = (torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0]))


def model() -> nn.ModuleDict:
    class Two(nn.Sequential):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

    return Two()  # type: ignore[return-value]


def made(default: Schedule, **schedules: Schedule) -> Step:
    per_group = PerGroup(schedules, default)
    return Step(model(), SGD(learning_rate=0.5, momentum=0.3), techniques=[per_group], total_updates=4)


def rates(step: Step) -> dict[str, float]:
    named = {id(parameter): name for name, parameter in step.model.named_parameters()}
    groups = step.optimizer.param_groups
    return {named[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}


def test_without_a_pattern_it_is_refused() -> None:
    with pytest.raises(SettingError, match=r"^per_group\.schedules: must be one pattern or more"):
        PerGroup({}, Linear())


def test_each_parameter_follows_the_schedule_of_its_pattern() -> None:
    step = made(Linear(), head=Constant(warmup=2))
    for body, head in ((0.5, 0.25), (0.375, 0.5), (0.25, 0.5), (0.125, 0.5)):
        step(BATCH)
        assert rates(step) == {"body.weight": body, "body.bias": body, "head.weight": head, "head.bias": head}


def test_momentum_is_moved_where_the_schedule_of_the_group_moves_it() -> None:
    step = made(Constant(), head=OneCycle(momentum=(0.5, 0.8)))
    step(BATCH)
    momenta = {group["name"]: group["momentum"] for group in step.optimizer.param_groups}
    assert momenta == {"decay": 0.3, "no_decay": 0.3, "head decay": 0.8, "head no_decay": 0.8}


def test_a_pattern_of_nothing_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"^per_group\.schedules: 'haed' matches no parameter\. Did you mean 'head'"
    ):
        made(Linear(), haed=Constant())


def test_the_length_of_the_run_is_asked_for_only_where_it_matters() -> None:
    assert PerGroup({"*": Constant()}, Constant()).seams(context()).schedule is not None
    with pytest.raises(SettingError, match="per_group: needs the number of updates of the run"):
        PerGroup({"*": Constant()}, Linear()).seams(context())


def test_a_resumed_run_has_the_schedule_of_each_group() -> None:
    whole, first, second = (made(Linear(), head=Constant(warmup=4)) for _ in range(3))
    for number in range(4):
        if number == 2:
            second.load_state_dict(first.state_dict())
        running = first if number < 2 else second
        whole(BATCH), running(BATCH)
        assert rates(running) == rates(whole)


def test_what_is_no_schedule_of_updates_is_refused() -> None:
    constant = find("constant")()
    with pytest.raises(
        SettingError, match=r"^per_group\.schedules: must be .* a schedule that goes by updates alone"
    ):
        PerGroup(schedules={"head": find("plateau")()}, default=constant)  # type: ignore[dict-item, arg-type]
    with pytest.raises(
        SettingError, match=r"^per_group\.default: must be a schedule that goes by updates alone"
    ):
        PerGroup(schedules={"head": constant}, default="linear")  # type: ignore[dict-item, arg-type]
