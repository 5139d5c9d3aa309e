from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.core import gradients as core_gradients
from snugfit.core.card import Sharing
from snugfit.core.gradients import AHEAD, HostGradients
from snugfit.core.selection import check
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.numerics.master_weights import MasterWeights
from snugfit.techniques.placement.gradient_offload import GradientOffload
from snugfit.techniques.placement.optimizer_offload import OptimizerOffload
from tests.laws import problems
from tests.laws.problems import differences, make_step, poisoned, saved
from tests.unit.techniques.live_memory import Live
from tests.unit.techniques.settings import optimizers_beside

OPTIMIZERS = optimizers_beside(GradientOffload)
CLIP = ClipNorm(max_norm=0.1)  # of which each update takes a part, so that the norm counts
MASTERS = MasterWeights(gradients="fp32")


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("others", [(), (OptimizerOffload(),)], ids=problems.name_of)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_weights_losses_and_checkpoints_are_those_of_gradients_on_the_device_bit_for_bit(
    optimizer: Technique, others: tuple[Technique, ...], micro_batch: int | None
) -> None:
    problem = problems.reader((optimizer,))
    plain, left = (
        make_step(problem, [optimizer, CLIP, *others, *more], micro_batch=micro_batch, dtype=torch.float32)
        for more in ((), (GradientOffload(),))
    )
    for window in problem.windows(torch.float32):
        one, other = plain(window), left(window)
        assert one.applied and (one.loss, one.metrics) == (other.loss, other.metrics)
        assert one.metrics
        assert not differences(saved(plain), saved(left))
        assert not differences(problems.gradients(plain), problems.gradients(left))
        assert all(parameter.grad is None for parameter in left.parameters)


@pytest.mark.parametrize("masters", [MasterWeights(), MASTERS], ids=str)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_masters_moments_and_gradients_on_the_host_are_those_of_the_device_bit_for_bit(
    masters: Technique, micro_batch: int | None
) -> None:
    problem = problems.gpt2((masters,))
    own = [AdamW(learning_rate=0.01), CLIP, masters]
    plain, left = (
        make_step(problem, [*own, *more], micro_batch=micro_batch, dtype=torch.float32)
        for more in ((), (OptimizerOffload(), GradientOffload()))
    )
    for number, window in enumerate(problem.windows()):
        assert plain(window).loss == left(window).loss
        assert not differences(saved(plain), saved(left))
        if number == 0:  # each goes on with the state of the other
            states = saved(plain), saved(left)
            plain.load_state_dict(states[1]), left.load_state_dict(states[0])


@pytest.mark.parametrize(("masters", "dtype"), [(MasterWeights(), torch.bfloat16), (MASTERS, torch.float32)])
def test_sums_have_the_type_that_gradients_are_added_up_in(masters: Technique, dtype: torch.dtype) -> None:
    step = Step(nn.Linear(4, 4), AdamW(), techniques=[masters, GradientOffload()], micro_batch=2)
    step((torch.randn(4, 4), torch.tensor([0, 1, 2, 3])))
    assert step.gradients()["weight"].dtype == dtype
    assert step.gradients()["bias"].dtype == torch.float32


def test_a_window_that_is_not_finite_or_empty_changes_nothing_and_leaves_no_gradient() -> None:
    problem = problems.reader(())
    techniques = [AdamW(learning_rate=0.01), OptimizerOffload(), GradientOffload()]
    step = make_step(problem, techniques, micro_batch=3)
    windows = problem.windows()
    step(windows[0])
    before = saved(step)
    for bad in (poisoned(windows[1], math.nan), problems.unlabelled(windows[1])):
        assert not step(bad).applied
        assert not step.gradients()
    assert {path.split("/")[1] for path in differences(before, saved(step))} == {"progress"}
    plain = make_step(problem, techniques[:1], micro_batch=3)
    plain(windows[0])
    assert step(windows[2]).loss == plain(windows[2]).loss


def test_a_parameter_that_a_window_does_not_reach_has_no_gradient_of_the_one_before() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
            self.first = True

        def forward(self, inputs: torch.Tensor) -> Any:
            return (self.one if self.first else self.other)(inputs)

    model = Either()
    step = Step(model, AdamW(), techniques=[GradientOffload()])
    window = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    step(window)
    assert set(step.gradients()) == {"one.weight", "one.bias"}
    model.first = False
    before = model.one.weight.detach().clone()
    step(window)
    assert set(step.gradients()) == {"other.weight", "other.bias"} and torch.equal(before, model.one.weight)


def test_a_sum_keeps_its_memory_from_window_to_window() -> None:
    step = Step(nn.Linear(2, 2), AdamW(), techniques=[GradientOffload()])
    window = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    step(window)
    first = step.gradients()["weight"].data_ptr()
    step(window)
    assert step.gradients()["weight"].data_ptr() == first


def test_on_a_device_a_few_gradients_are_there_at_a_time_and_their_sums_on_the_host() -> None:
    """On a device that is fake: its tensors have a place and no numbers."""
    with FakeTensorMode():
        weights = [nn.Parameter(torch.empty(64, 64, device="cuda")) for _ in range(8)]
        sums = HostGradients()
        sums.bear(weights)
        with Live(device="cuda") as live:
            for parameter in weights:
                parameter.grad = torch.empty_like(parameter)
                sums._take(parameter)
        sums._add(sums._arriving.popleft())
        assert {bearer.grad.device.type for bearer in sums.bearers.values() if bearer.grad is not None} == {
            "cpu"
        }
        assert all(parameter.grad is None for parameter in weights)
        assert live.peak == weights[0].nbytes


def test_gradients_on_their_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, most = HostGradients(), 0
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    sums.bear(model.parameters())
    add = HostGradients._add

    def counting(self: HostGradients, leaving: Any) -> None:
        nonlocal most
        most = max(most, len(self._arriving) + 1)
        add(self, leaving)

    monkeypatch.setattr(HostGradients, "_add", counting)
    with sums.taking():
        model(torch.ones(1, 4)).sum().backward()
    assert most == AHEAD + 1


def test_a_gradient_leaves_behind_the_backward_that_made_it_and_keeps_its_memory_until_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a device is asked for, in its order: without the first the copy reads too early, without the third others write over it."""
    asked: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            pass

        def wait_stream(self, other: str) -> None:
            asked.append(f"behind the {other}")

        def record_event(self) -> Any:
            asked.append("event")
            return SimpleNamespace(synchronize=lambda: asked.append("waited for"))

        def __enter__(self) -> None:
            asked.append("on the stream")

        def __exit__(self, *error: object) -> None:
            asked.append("off it")

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        asked.append("copied")
        return tensor.clone()

    monkeypatch.setattr(core_gradients, "COPIES_BESIDE", ("cpu",))
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: "computation")
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: asked.append("kept"))
    monkeypatch.setattr(torch.Tensor, "to", to)
    weight, sums = nn.Parameter(torch.ones(2)), HostGradients()
    sums.bear([weight])
    with sums.taking():
        (3 * weight).sum().backward()
        assert asked == ["behind the computation", "on the stream", "copied", "off it", "kept", "event"]
    assert asked[6:] == ["waited for"] and sums.of(weight).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "other", ["adaptive_clip", "gradient_noise", "sam", "optimizer_in_backward", "schedule_free"]
)
def test_what_needs_gradients_on_the_device_is_refused_with_the_reason(other: str) -> None:
    with pytest.raises(PlanConflict, match=r"on the host alone.*Remove one|from its own state.*Remove one"):
        check([GradientOffload(), find(other).example()])


@pytest.mark.parametrize("sharing", list(Sharing))
def test_several_devices_are_refused_and_shown_the_strategy_that_has_it(sharing: Sharing) -> None:
    assert "fsdp-offload" in (GradientOffload().refused_on(sharing) or "")
