from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.techniques.learning.adaptive_clip import AdaptiveClip, adaptive_clip_, unit_norms
from snugfit.techniques.learning.lora import lora_
from tests.laws.models import Normed, NormedViewer, Reader
from tests.unit.techniques.settings import MOMENT, context, refuses


@pytest.mark.parametrize("value", [0, -1.0, math.nan])
@pytest.mark.parametrize("setting", ["factor", "epsilon"])
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(AdaptiveClip, **{setting: value})


def with_gradients(model: nn.Module, value: float = 100.0) -> nn.Module:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return model


def test_a_unit_is_a_row_of_a_matrix_a_filter_of_a_convolution_and_a_whole_bias() -> None:
    assert unit_norms(torch.ones(4)).shape == ()
    assert unit_norms(torch.ones(3, 4)).flatten().tolist() == [2.0] * 3
    found = unit_norms(torch.ones(2, 4, 2, 2))
    assert found.shape == (2, 1, 1, 1) and found.flatten().tolist() == [4.0] * 2


def test_norms_of_sixteen_bit_weights_do_not_overflow() -> None:
    assert float(unit_norms(torch.full((4,), 60000.0, dtype=torch.float16))) == pytest.approx(
        120000, rel=1e-3
    )


def test_after_it_no_unit_is_longer_than_its_share_and_directions_stay() -> None:
    model = with_gradients(nn.Conv2d(3, 4, 3))
    before = model.weight.grad.clone()  # type: ignore[operator, union-attr]
    adaptive_clip_(model.parameters(), factor=0.01)
    found: torch.Tensor = model.weight.grad  # type: ignore[assignment]
    torch.testing.assert_close(unit_norms(found), 0.01 * unit_norms(model.weight.detach()))  # type: ignore[operator]
    cosine = nn.functional.cosine_similarity(found.flatten(1), before.flatten(1))
    torch.testing.assert_close(cosine, torch.ones(4))


def test_a_short_gradient_is_left_bit_for_bit_and_one_of_zero_stays_zero() -> None:
    weight = nn.Parameter(torch.ones(2, 3))
    weight.grad = torch.tensor([[1e-3, 1 / 3000, 0.0], [0.0, 0.0, 0.0]])
    before = weight.grad.clone()
    adaptive_clip_([weight, nn.Parameter(torch.ones(1))], factor=0.01)
    assert torch.equal(weight.grad, before)


def test_weights_of_zero_can_leave_zero_by_epsilon() -> None:
    weight = nn.Parameter(torch.zeros(1, 4))
    weight.grad = torch.full((1, 4), 5.0)
    adaptive_clip_([weight], factor=0.1, epsilon=0.02)
    assert weight.grad.flatten().tolist() == pytest.approx([0.001] * 4)


def left_alone(model: nn.Module, **settings: object) -> list[str]:
    """Names of the parameters whose gradients stay as they are; all are far too long."""
    seams = AdaptiveClip(**settings).seams(context(model))  # type: ignore[arg-type]
    assert seams.adjust is not None
    seams.adjust(list(with_gradients(model).parameters()), MOMENT)
    return [
        name for name, p in model.named_parameters() if p.grad is not None and bool((p.grad == 100).all())
    ]


def test_the_last_linear_layer_is_left_out() -> None:
    assert left_alone(Normed()) == ["body.4.weight", "body.4.bias"]
    assert left_alone(NormedViewer()) == ["head.weight", "head.bias"]


def test_a_head_that_shares_its_weight_takes_the_other_layer_with_it() -> None:
    assert left_alone(Reader()) == ["tokens.weight", "head.bias"]
    assert left_alone(Reader(), exclude=("head.weight",)) == ["tokens.weight"]


def test_patterns_say_what_is_left_out() -> None:
    assert left_alone(Normed(), exclude=("*.bias", "body.1.*")) == [
        "body.0.bias",
        "body.1.weight",
        "body.1.bias",
        "body.4.bias",
    ]
    assert left_alone(Normed(), exclude=("1", "body.4.bias")) == [
        "body.1.weight",
        "body.1.bias",
        "body.4.bias",
    ]
    assert left_alone(Normed(), exclude=()) == []


def test_a_pattern_that_matches_nothing_and_a_head_that_is_not_there_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^adaptive_clip\.exclude: 'fc\*' matches no module or parameter"):
        AdaptiveClip(exclude=("fc*",)).seams(context(Normed()))
    with pytest.raises(SettingError, match=r"^adaptive_clip\.exclude: the model has no linear layer"):
        AdaptiveClip().seams(context(nn.Conv2d(1, 1, 1)))


def test_an_adapted_head_is_left_out_with_its_adapter() -> None:
    model = lora_(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), rank=2)
    assert left_alone(model) == [
        "2.base_layer.weight",
        "2.base_layer.bias",
        "2.lora_A.default.weight",
        "2.lora_B.default.weight",
    ]


def test_the_units_of_a_weight_that_is_kept_the_other_way_round_are_its_columns() -> None:
    """GPT-2's layers have weights (inputs, outputs)."""
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(nn.Linear(3, 4), Conv1D(5, 4), nn.Linear(5, 2))
    with torch.no_grad():
        model[1].weight.normal_()
    seams = AdaptiveClip(factor=0.01).seams(context(model))
    assert seams.adjust is not None
    seams.adjust(list(with_gradients(model).parameters()), MOMENT)
    for weight, units in ((model[0].weight, 1), (model[1].weight, 0)):
        torch.testing.assert_close(weight.grad.norm(dim=units), 0.01 * weight.detach().norm(dim=units))
