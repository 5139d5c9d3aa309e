from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.errors import DataError, SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.techniques import find
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.gradient_cache import GradientCache
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD


def window(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, 4, generator=generator).to(dtype),
        torch.randint(3, (rows,), generator=generator),
        torch.ones(rows),
    )


def first_entry(model: nn.Module, data: Any) -> Any:
    return model(data[0])


# weights of losses


def weighted(outputs: Tensor, data: Any) -> LossTerms:
    return LossTerms(outputs.square().sum(1), data[2].to(outputs.dtype))


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("techniques", [(), (GradientCache(),)], ids=["plain", "gradient cache"])
@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_a_negative_weight_is_refused_and_nothing_is_updated(
    micro_batch: int | None, techniques: tuple[Any, ...], kind: torch.dtype
) -> None:
    def negative(outputs: Tensor, data: Any) -> LossTerms:
        return LossTerms(outputs.square().sum(1), data[2].to(kind))

    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    inputs, labels, weights = window(6)
    weights[4] = -1
    step = Step(
        model, SGD(learning_rate=0.1), negative, techniques, micro_batch=micro_batch, forward=first_entry
    )
    with pytest.raises(SettingError, match="loss: got negative weights"):
        step((inputs, labels, weights))
    assert torch.equal(model.weight, before) and model.weight.grad is None
    with pytest.raises(SettingError, match="loss: got negative weights"):
        evaluate(Scored.of(step), [Batch.of((inputs, labels, weights))], {})


def test_a_weight_with_a_gradient_is_refused() -> None:
    def learned(outputs: Tensor, data: Any) -> LossTerms:
        return LossTerms(outputs[:, 0].square(), outputs[:, 1].square())

    with pytest.raises(SettingError, match=r"loss: got weights with a gradient.*weights\.detach"):
        Step(nn.Linear(4, 3), SGD(), learned, forward=first_entry)(window(4))


def test_a_window_of_weights_that_are_all_zero_is_passed_over() -> None:
    inputs, labels, weights = window(4)
    step = Step(nn.Linear(4, 3), SGD(), weighted, forward=first_entry)
    result = step((inputs, labels, torch.zeros_like(weights)))
    assert not result.applied and result.weight == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("micro_batch", [None, 300])
def test_weights_in_16_bit_are_counted_in_float32(dtype: torch.dtype, micro_batch: int | None) -> None:
    rows = 4099 if dtype is torch.float16 else 1031  # neither type has this number
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).to(dtype)
    data = window(rows, dtype)
    exact = model.weight.detach().float().requires_grad_()
    step = Step(model, SGD(), weighted, micro_batch=micro_batch, forward=first_entry)
    with step.computed(Batch.of(data)):
        found = model.weight.grad.float()
    result = step(data)
    mean = (data[0].float() @ exact.T).square().sum(1).mean()
    mean.backward()
    assert result.weight == rows
    assert result.loss == pytest.approx(
        float(mean.detach()), rel=2e-3
    )  # of values that were rounded one by one
    torch.testing.assert_close(found, exact.grad, rtol=0.03, atol=0.03)


# modes


def test_after_an_evaluation_of_ones_own_each_module_is_in_the_mode_of_the_last_update() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(4, 3))
    step = Step(model, SGD(learning_rate=0.1))
    model[1].eval()
    inputs, labels, _ = window(4)
    step((inputs, labels))
    model.eval()
    model(inputs)
    modes: list[list[bool]] = []
    model[0].register_forward_hook(lambda *_: modes.append([part.training for part in model]))
    step((inputs, labels))
    assert modes == [[True, False, True, True]]


def test_a_part_put_in_eval_mode_between_updates_stays_in_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    step = Step(model, SGD(learning_rate=0.1))
    inputs, labels, _ = window(4)
    step((inputs, labels))
    model[1].eval()
    step((inputs, labels))
    model.eval()
    step((inputs, labels))
    assert [part.training for part in model] == [True, False, True]


# a branch that begins as nothing (ControlNet, Zhang et al. 2023, arXiv:2302.05543)


class WithControl(nn.Module):
    """A frozen network, and a branch over a second input behind a layer of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Linear(4, 3).requires_grad_(False)
        self.branch = nn.Sequential(nn.Linear(2, 5), nn.Tanh())
        self.zero = nn.Linear(5, 3)
        nn.init.zeros_(self.zero.weight)
        nn.init.zeros_(self.zero.bias)

    def forward(self, inputs: Tensor, control: Tensor) -> Any:
        return self.trained(inputs) + self.zero(self.branch(control))


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_branch_behind_zeros_changes_nothing_at_update_0_and_learns_from_the_first(
    micro_batch: int | None,
) -> None:
    torch.manual_seed(0)
    model = WithControl()
    inputs, labels, _ = window(6)
    control = torch.randn(6, 2)
    assert torch.equal(model(inputs, control), model.trained(inputs))
    first = {name: value.clone() for name, value in model.state_dict().items()}
    step = Step(
        model,
        SGD(learning_rate=0.5),
        micro_batch=micro_batch,
        forward=lambda model, data: model(data[0], data[1]),
    )
    for moves in ({"zero.weight", "zero.bias"}, set(first) - {"trained.weight", "trained.bias"}):
        assert step((inputs, control, labels)).applied
        assert {
            name for name, value in model.state_dict().items() if not torch.equal(value, first[name])
        } == moves


# the way of a window that is one micro-batch


@pytest.mark.parametrize("loss", ["cross_entropy", weighted], ids=["named", "own with weights"])
@pytest.mark.parametrize("techniques", [(), (SAM(rho=0.1),), (EMA(),)], ids=["plain", "sam", "ema"])
def test_a_window_at_once_makes_the_update_of_the_way_for_all_windows(
    loss: Any, techniques: tuple[Any, ...]
) -> None:
    def trained(*, at_once: bool) -> tuple[list[Any], list[Tensor]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
        forward = None if loss == "cross_entropy" else first_entry
        step = Step(model, SGD(learning_rate=0.1), loss, techniques, forward=forward)
        assert step.plain
        step.plain = at_once
        results = []
        for rows in (6, 5, 6):
            inputs, labels, weights = window(rows)
            inputs[0] = torch.nan if rows == 5 else inputs[0]
            result = step((inputs, labels) if forward is None else (inputs, labels, weights))
            results.append((result.loss, result.weight, result.applied, step.largest))
        return results, [each.clone() for each in model.state_dict().values()]

    (one, weights), (other, others) = trained(at_once=True), trained(at_once=False)
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert [applied for _, _, applied, _ in one] == [True, False, True]
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))


@pytest.mark.parametrize(
    ("techniques", "plain"),
    [
        ((), True),
        ((find("clip_norm")(max_norm=1.0),), True),
        ((find("fp16")(),), False),
        ((find("recompute")(),), False),
    ],
    ids=["none", "clip norm", "fp16", "recompute"],
)
def test_what_scales_a_loss_or_surrounds_a_micro_batch_takes_the_way_for_all_windows(
    techniques: tuple[Any, ...], plain: bool
) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)))
    assert Step(model, SGD(learning_rate=0.1), techniques=techniques).plain is plain


# a loss without a gradient


@pytest.mark.parametrize("micro_batch", [None, 2], ids=["at once", "split"])
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_step_under_a_switch_that_turns_gradients_off_says_so(off: Any, micro_batch: int | None) -> None:
    step = Step(nn.Linear(4, 3), SGD(learning_rate=0.1), micro_batch=micro_batch)
    inputs, labels, _ = window(6)
    step((inputs, labels))
    with off(), pytest.raises(SettingError, match="step: is called where gradients are switched off"):
        step((inputs, labels))
    assert step((inputs, labels)).applied


def test_a_loss_that_is_cut_off_from_the_weights_is_refused_before_anything_moves() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    step = Step(model, SGD(learning_rate=0.1), lambda outputs, batch: outputs.detach().square().sum(dim=1))
    with pytest.raises(SettingError, match="loss: has no gradient"):
        step(window(6)[:2])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# the device


def test_a_window_goes_where_the_model_computes_and_not_where_its_weights_wait() -> None:
    class Elsewhere(Strategy):
        device = torch.device("meta")

    model = nn.Linear(4, 3)
    assert Step(model, SGD(), strategy=Elsewhere()).device == torch.device("meta")
    assert Step(model, SGD()).device == torch.device("cpu")
    assert Step(model, SGD(), strategy=Elsewhere(), device="cpu").device == torch.device("cpu")


def test_labels_of_several_classes_a_row_are_refused_before_anything_is_trained() -> None:
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    with pytest.raises(DataError, match="loss binary_cross_entropy"):
        Step(model, SGD(learning_rate=0.1))((torch.randn(2, 4), torch.tensor([[1.0, 0, 1], [1, 0, 0]])))
    assert torch.equal(model.weight, before)
