from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.card import Sharing
from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit.optimizers.masters import MasterOptimizer
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.fp16_master_weights import FP16MasterWeights
from snugfit.techniques.placement.gradient_offload import GradientOffload
from snugfit.techniques.placement.optimizer_offload import OptimizerOffload
from tests.laws import problems
from tests.laws.problems import besides_scale, differences, make_step, saved
from tests.unit.techniques.settings import refuses

ROWS = 6
SETTINGS = {
    "initial_scale": 2.0**22,
    "growth_interval": 2,
}  # it overflows at once and each time it has grown again
ON_HOST = (OptimizerOffload(), GradientOffload())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


def windows() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(3)
    made = [
        (torch.randn(ROWS, 5, generator=source), torch.randint(0, 3, (ROWS,), generator=source))
        for _ in range(16)
    ]
    made[7][0][-1] = math.nan
    return made


def by_hand(model: nn.Module) -> tuple[dict[str, Tensor], list[bool]]:
    """The loop of the paper in plain torch: fp16 weights, a loss scale, masters and SGD with momentum in float32."""
    narrow = [each for each in model.parameters() if each.ndim >= 2]
    for weight in narrow:
        weight.data = weight.data.half()
    masters = {name: nn.Parameter(each.detach().float()) for name, each in model.named_parameters()}
    optimizer = torch.optim.SGD(masters.values(), lr=0.1, momentum=0.9)
    scale, in_a_row, applied = 2.0**22, 0, []
    for inputs, labels in windows():
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            values = F.cross_entropy(model(inputs).float(), labels, reduction="none")
        values.backward(torch.full_like(values, scale / ROWS))
        for master, weight in zip(masters.values(), model.parameters(), strict=True):
            assert weight.grad is not None
            master.grad = weight.grad.float() / scale
        gradients = [master.grad for master in masters.values()]
        applied.append(all(bool(each.isfinite().all()) for each in gradients if each is not None))
        if not applied[-1]:
            scale, in_a_row = scale / 2, 0
            continue
        in_a_row += 1
        if in_a_row == 2:
            scale, in_a_row = scale * 2, 0
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters.values(), model.parameters(), strict=True):
                weight.copy_(master)
    return {name: master.detach() for name, master in masters.items()}, applied


@pytest.mark.parametrize("more", [(), ON_HOST], ids=problems.name_of)
def test_it_trains_as_a_plain_loop_with_masters_and_a_loss_scale_bit_for_bit(
    more: tuple[OptimizerOffload, GradientOffload] | tuple[()],
) -> None:
    step = Step(
        net(),
        SGD(learning_rate=0.1, momentum=0.9),
        techniques=[FP16MasterWeights(**SETTINGS), *more],
    )
    applied = [step(window).applied for window in windows()]
    expected, expected_applied = by_hand(net())
    assert applied == expected_applied and 4 < sum(applied) < 14
    optimizer = step.optimizer
    assert isinstance(optimizer, MasterOptimizer)
    found = {
        name: optimizer.own[each]["master"] if each in optimizer.own else each.detach()
        for name, each in step.model.named_parameters()
    }
    assert not differences(found, expected)


def test_gradients_too_small_for_fp16_are_unscaled_in_fp32() -> None:
    model = nn.Linear(4, 4, bias=False)
    step = Step(model, SGD(learning_rate=0.1), techniques=[FP16MasterWeights(initial_scale=2.0**16)])
    inputs = torch.full((4, 4), 2.0**-24)
    step((inputs, torch.tensor([0, 0, 0, 0])))
    gradient = step.gradients()["weight"]
    assert gradient.dtype == torch.float32 and bool((gradient != 0).all())
    assert not gradient.half()[1:].any()


@pytest.mark.parametrize("more", [(), ON_HOST], ids=problems.name_of)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit_and_a_window_that_overflows_lowers_the_scale_alone(
    more: tuple[OptimizerOffload, GradientOffload] | tuple[()],
) -> None:
    techniques = (FP16MasterWeights(initial_scale=2.0**8, growth_interval=2), SGD(), *more)
    problem = problems.reader(techniques)
    whole = make_step(problem, techniques, micro_batch=3)
    first, second, third = problem.windows()
    whole(first)
    before = saved(whole)
    assert not whole(problems.poisoned(second, math.inf)).applied
    changed = besides_scale(whole, {*differences(before, saved(whole))})
    assert {path.split("/")[1] for path in changed} <= {"progress"}
    resumed = make_step(problem, techniques, micro_batch=3, model_seed=2)
    resumed.load_state_dict(saved(whole))
    for window in (second, third):
        assert whole(window).applied and resumed(window).applied
        assert not differences(saved(whole), saved(resumed))


@pytest.mark.parametrize(
    "other", ["bf16", "fp16", "pure_bf16", "master_weights", "fp32_logits", "schedule_free"]
)
def test_another_precision_and_what_cannot_hold_is_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match=r"Remove one"):
        check([FP16MasterWeights(), find(other).example()])


@pytest.mark.parametrize("sharing", list(Sharing))
def test_several_devices_are_refused_and_shown_what_they_can_have(sharing: Sharing) -> None:
    assert "plan.numerics: fp16" in (FP16MasterWeights().refused_on(sharing) or "")


def test_a_model_that_was_made_in_bf16_is_refused_before_it_is_touched_unless_forced() -> None:
    model = nn.Linear(2, 2).bfloat16()
    with pytest.raises(SettingError, match=r"numerics: \{fp16_master_weights: \{force: true\}\}"):
        FP16MasterWeights().prepare(model)
    assert model.weight.dtype == torch.bfloat16
    assert FP16MasterWeights(force=True).prepare(model).get_parameter("weight").dtype == torch.float16


def test_settings_out_of_range_are_refused() -> None:
    refuses(FP16MasterWeights, backoff_factor=1.0)


def test_transformers_is_asked_for_fp16_when_it_loads() -> None:
    assert FP16MasterWeights().loading(nn.Linear(2, 2)) == {"dtype": torch.float16}
