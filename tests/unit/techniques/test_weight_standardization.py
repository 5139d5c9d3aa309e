from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.weight_standardization import (
    WeightStandardization,
    standardized,
    with_stock_convs,
)
from tests.unit.techniques.model_changes import again_from_its_bundle, stock_from_its_bundle


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_each_filter_has_mean_0_and_variance_1(dtype: torch.dtype) -> None:
    filters = (5 + 3 * torch.randn(6, 4, 3, 3)).to(dtype)
    result = standardized(filters)
    assert result.dtype == dtype
    near = {"atol": 0.02 if dtype == torch.bfloat16 else 1e-4, "rtol": 0}
    flat = result.double().flatten(1)
    torch.testing.assert_close(flat.mean(dim=1), torch.zeros(6).double(), **near)
    torch.testing.assert_close(flat.var(dim=1, unbiased=False), torch.ones(6).double(), **near)


@pytest.mark.parametrize(("kind", "shape"), [(nn.Conv1d, (9,)), (nn.Conv2d, (9, 8)), (nn.Conv3d, (9, 8, 7))])
def test_scale_and_mean_of_a_filter_do_not_matter(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    options = {"padding": 1, "stride": 2, "padding_mode": "circular"}
    model = WeightStandardization().prepare(nn.Sequential(kind(4, 6, 3, **options).double()))
    inputs = torch.randn(2, 4, *shape).double()
    with torch.no_grad():
        model[0].weight.mul_(50)  # beside which epsilon is nothing
    before = model(inputs)
    other = kind(4, 6, 3, **options).double()
    with torch.no_grad():
        other.weight.copy_(standardized(model[0].weight) / model[0].weight[0].numel() ** 0.5)
        other.bias.copy_(model[0].bias)
        torch.testing.assert_close(before, other(inputs))
        model[0].weight.mul_(7).add_(3)
    torch.testing.assert_close(model(inputs), before, rtol=1e-3, atol=1e-3)


def test_scaled_filters_leave_the_size_of_what_they_see() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(4, 16, 20, 20)
    for scaled, size in ((True, 1.0), (False, 12.0)):
        model = WeightStandardization(scaled=scaled).prepare(nn.Sequential(nn.Conv2d(16, 32, 3, bias=False)))
        assert float(model(inputs).detach().std()) == pytest.approx(size, rel=0.05)


def test_the_weight_itself_is_what_trains() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 2, 1))
    names = list(plain.state_dict())
    values = [each.clone() for each in plain.state_dict().values()]
    model = WeightStandardization(all_but=("2",)).prepare(plain)
    assert list(model.state_dict()) == names
    assert all(
        torch.equal(one, other) for one, other in zip(model.state_dict().values(), values, strict=True)
    )
    assert type(model[1]) is nn.Conv2d, "a filter of one weight would be 0"
    assert type(model[2]) is nn.Conv2d, "left out by name"
    model(torch.randn(1, 3, 8, 8)).sum().backward()
    assert model[0].weight.grad is not None
    # along the weight and along a constant nothing is to be gained
    flat, gradient = model[0].weight.flatten(1), model[0].weight.grad.flatten(1)
    torch.testing.assert_close(gradient.sum(dim=1), torch.zeros(4), atol=1e-3, rtol=0)
    torch.testing.assert_close((gradient * flat).sum(dim=1), torch.zeros(4), atol=1e-2, rtol=0)


def test_a_model_without_convolutions_is_refused() -> None:
    with pytest.raises(SettingError, match="weight_standardization: has nothing to change: .* Remove it."):
        WeightStandardization().prepare(nn.Linear(2, 2))
    with pytest.raises(SettingError, match="weight_standardization.all_but: 'head' matches no module"):
        WeightStandardization(all_but=("head",)).prepare(nn.Sequential(nn.Conv2d(2, 2, 3)))


def test_a_bundle_holds_the_filters_that_were_computed_with(tmp_path: Path) -> None:
    again_from_its_bundle(tmp_path / "ours", WeightStandardization())
    stock_from_its_bundle(tmp_path / "alone", WeightStandardization())


def test_convolutions_that_share_a_weight_are_delivered_with_one() -> None:
    torch.manual_seed(0)
    convs = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3)))
    for each in convs:
        each.weight = convs[0].weight
    model = WeightStandardization(all_but=("2",)).prepare(convs)
    delivered = with_stock_convs(model)
    assert [type(each) for each in delivered] == [nn.Conv2d] * 3
    assert delivered[0].weight is delivered[1].weight
    assert torch.equal(delivered[2].weight, model[0].weight), "it computes with the weight as it is"
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(delivered(images), model(images))


@pytest.mark.parametrize("adapters", ["lora", "ia3"])
def test_adapters_whose_part_would_be_standardised_are_refused(adapters: str) -> None:
    with pytest.raises(PlanConflict, match="what an adapter adds to a filter would be standardised with it"):
        check([WeightStandardization(), find(adapters)()])
