from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from snugfit.core.selection import check
from snugfit.errors import MissingExtra, PlanConflict, SettingError
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.schedule_free import ScheduleFree, averages_of
from tests.unit.techniques.settings import context, refuses

BATCH = (torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)


@pytest.mark.parametrize("name", ["learning_rate", "epsilon"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_size_is_refused(name: str, value: float) -> None:
    refuses(ScheduleFree, **{name: value})


@pytest.mark.parametrize("value", [(0.0, 0.9), (1.0, 0.9), (0.9, 1.0), (0.9,)])
def test_impossible_betas_are_refused(value: Any) -> None:
    refuses(ScheduleFree, betas=value)


def test_other_impossible_settings_are_refused() -> None:
    refuses(ScheduleFree, weight_decay=-0.1)
    refuses(ScheduleFree, warmup=1.5)
    refuses(ScheduleFree, norm_windows=-1)


def test_a_warm_up_as_a_fraction_needs_the_length_of_the_run() -> None:
    with pytest.raises(SettingError, match="^schedule_free: needs the number of updates of the run"):
        ScheduleFree(warmup=0.1).seams(context())
    ScheduleFree().seams(context())


def made(settings: ScheduleFree | None = None, model: nn.Module | None = None) -> Step:
    torch.manual_seed(0)
    return Step(model or nn.Linear(3, 2), settings or ScheduleFree(learning_rate=0.1), total_updates=10)


def test_it_trains_and_averages_as_the_library_in_a_hand_written_loop() -> None:
    from schedulefree import AdamWScheduleFree

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.1, warmup_steps=3)
    optimizer.train()
    step = made(ScheduleFree(learning_rate=0.1, warmup=3))
    for _ in range(6):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]).backward()
        optimizer.step()
        step(BATCH)
    torch.testing.assert_close(step.model.weight, model.weight, rtol=1e-5, atol=1e-7)
    optimizer.eval()
    with step.averaged():
        torch.testing.assert_close(step.model.weight, model.weight, rtol=1e-5, atol=1e-7)
        assert not torch.equal(step.model.weight, made().model.weight)


def test_the_average_is_what_the_trained_weights_are_made_of() -> None:
    fast, average = [torch.randn(3, 2)], [torch.randn(3, 2)]
    trained = [(1 - 0.9) * fast[0] + 0.9 * average[0]]
    torch.testing.assert_close(averages_of(trained, fast, 0.9), average)


def test_the_average_of_half_precision_weights_is_worked_out_in_float32() -> None:
    found = averages_of([torch.ones(2).bfloat16()], [torch.full((2,), 1.25).bfloat16()], 0.9)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0], torch.full((2,), 1 - 0.25 / 9))


def test_scoring_gives_the_trained_weights_back_bit_for_bit() -> None:
    step, other = made(), made()
    for _ in range(5):
        step(BATCH), other(BATCH)
        for _ in range(20):  # going there and back by interpolation drifts
            with step.averaged():
                pass
    assert torch.equal(step.model.weight, other.model.weight)
    assert all(group["train_mode"] for group in step.optimizer.param_groups)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.used(inputs)
        return result


def test_weights_without_a_gradient_are_their_own_average() -> None:
    model = Half()
    step = made(model=model)
    before = model.unused.weight.detach().clone()
    with step.averaged():
        assert torch.equal(model.unused.weight, before)
    step(BATCH)
    with step.averaged():
        assert torch.equal(model.unused.weight, before)


def test_gradients_are_left_as_they_were() -> None:
    step = made()
    model = nn.Linear(3, 2)
    model.load_state_dict(step.model.state_dict())
    nn.functional.cross_entropy(model(BATCH[0]), BATCH[1]).backward()
    step(BATCH)
    torch.testing.assert_close(step.model.weight.grad, model.weight.grad)


def test_the_rate_rises_and_stays_and_is_told() -> None:
    step = made(ScheduleFree(learning_rate=0.4, warmup=4))
    assert [step(BATCH).learning_rate for _ in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_vectors_are_not_decayed() -> None:
    decay, no_decay = made(ScheduleFree(weight_decay=0.2)).optimizer.param_groups
    assert (decay["weight_decay"], no_decay["weight_decay"]) == (0.2, 0.0)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_batch_norm_is_scored_with_the_statistics_of_the_average() -> None:
    step, averaged = made(model=normed()), normed()
    for _ in range(4):
        step(BATCH)
    own = step.model[1].running_mean.clone()
    with step.averaged():
        averaged.load_state_dict(step.model.state_dict())
    update_bn([BATCH[0]], averaged)

    def windows() -> Iterator[Any]:
        yield BATCH

    step.settle(windows)
    with step.averaged():
        found = step.model.state_dict()
        assert all(torch.equal(found[name], value) for name, value in averaged.state_dict().items())
    assert torch.equal(step.model[1].running_mean, own)


def test_an_outer_schedule_an_average_and_lookahead_are_refused_with_the_reason() -> None:
    with pytest.raises(
        PlanConflict,
        match="'schedule_free' and 'linear' both give the schedule, and a run has one. Remove one",
    ):
        check([ScheduleFree(), find("linear")()])
    with pytest.raises(PlanConflict, match="both give the weights"):
        check([ScheduleFree(), find("ema")()])
    with pytest.raises(PlanConflict, match="lookahead moves the weights"):
        check([ScheduleFree(), find("lookahead")()])


def test_without_the_package_the_command_to_install_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "schedulefree", None)
    with pytest.raises(MissingExtra, match=r"schedulefree is not installed.*snugfit\[optimizers\]"):
        made()
