from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.squeeze_excite import ChannelFactors, SqueezeExcite
from tests.unit.techniques.model_changes import again_from_its_bundle
from tests.unit.techniques.settings import refuses


@pytest.mark.parametrize("setting", ["reduction", "min_channels"])
def test_impossible_settings_are_refused(setting: str) -> None:
    refuses(SqueezeExcite, **{setting: 0})


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 8, 1))


def test_convolutions_of_enough_channels_get_one_of_their_own_width() -> None:
    model = SqueezeExcite(reduction=4, min_channels=8).prepare(net())
    added = {
        name: tuple(p.shape)
        for name, p in model.named_parameters()
        if "squeeze_excite" in name and p.ndim == 2
    }
    assert added == {
        "2.squeeze_excite.squeeze.weight": (4, 16),
        "2.squeeze_excite.excite.weight": (16, 4),
        "3.squeeze_excite.squeeze.weight": (2, 8),
        "3.squeeze_excite.excite.weight": (8, 2),
    }
    named = SqueezeExcite(convs=("0",)).prepare(net())
    assert {name.partition(".")[0] for name, _ in named.named_parameters() if "squeeze_excite" in name} == {
        "0"
    }


def test_each_channel_is_scaled_by_a_factor_of_the_whole_image() -> None:
    layer = ChannelFactors(6, 3, torch.empty(0, dtype=torch.float64))
    features = torch.randn(4, 6, 5, 7, dtype=torch.float64)
    factors = layer(features) / features
    torch.testing.assert_close(factors, factors[..., :1, :1].expand_as(features))
    assert ((factors > 0) & (factors < 1)).all()
    # places do not matter, the mean of each channel does
    shuffled = features.flatten(2)[..., torch.randperm(35)].view_as(features)
    torch.testing.assert_close((layer(shuffled) / shuffled)[..., 0, 0], factors[..., 0, 0])
    torch.testing.assert_close(layer(features)[2], layer(features[2]))


def test_a_copy_of_the_model_has_factors_of_its_own() -> None:
    model = SqueezeExcite(min_channels=8).prepare(net())
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[3].squeeze_excite.excite.bias.fill_(-100)
    images = torch.randn(2, 3, 9, 9)
    assert (other(images) == 0).all() and (model(images) != 0).any()


def test_a_model_without_such_convolutions_is_refused_with_those_it_has() -> None:
    with pytest.raises(
        SettingError,
        match=r"squeeze_excite.convs: has nothing to change: .* 128 channels \(min_channels\) .*; it has 0, 2, 3",
    ):
        SqueezeExcite().prepare(net())
    with pytest.raises(SettingError, match="has nothing to change: .*; it has none"):
        SqueezeExcite().prepare(nn.Linear(2, 2))
    with pytest.raises(SettingError, match="squeeze_excite.convs: 'stem' matches no Conv2d"):
        SqueezeExcite(convs=("stem",)).prepare(net())


def test_a_bundle_makes_it_again(tmp_path: Path) -> None:
    again_from_its_bundle(tmp_path, SqueezeExcite(reduction=2, min_channels=2))


@pytest.mark.parametrize("adapters", ["lora", "ia3"])
def test_adapters_which_would_freeze_it_are_refused(adapters: str) -> None:
    with pytest.raises(PlanConflict, match="the new layers would not train with the adapters"):
        check([SqueezeExcite(), find(adapters)()])
