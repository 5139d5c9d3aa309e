from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from snugfit.core.selection import check, prepare
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.factorized_conv import FactorizedConv, factorized
from tests.unit.techniques.model_changes import again_from_its_bundle
from tests.unit.techniques.settings import refuses


@pytest.mark.parametrize(("setting", "value"), [("part", 0), ("part", 1.0), ("min_channels", 0)])
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(FactorizedConv, **{setting: value})


OPTIONS = {"stride": 2, "padding": (1, 2), "dilation": (1, 2), "padding_mode": "reflect"}


@pytest.mark.parametrize("bias", [True, False])
def test_of_all_channels_nothing_is_lost(bias: bool) -> None:
    conv = nn.Conv2d(6, 8, (3, 2), bias=bias, **OPTIONS).double()
    images = torch.randn(2, 6, 9, 10).double()
    torch.testing.assert_close(factorized(conv, rank=8)(images), conv(images))


def test_it_is_the_nearest_of_its_rank() -> None:
    """Eckart and Young 1936: what is lost are the smaller singular values."""
    conv = nn.Conv2d(6, 8, 3).double()
    pair = factorized(conv, rank=3)
    product = pair.wide.weight.flatten(1) @ pair.narrow.weight.flatten(1)
    sizes = np.linalg.svd(conv.weight.detach().flatten(1).numpy(), compute_uv=False)
    lost = float((product - conv.weight.flatten(1)).detach().norm())
    assert lost == pytest.approx(float(np.sqrt((sizes[3:] ** 2).sum())), rel=1e-10)
    assert float(pair.wide.weight.detach().norm()) == pytest.approx(float(pair.narrow.weight.detach().norm()))


def test_large_convolutions_are_replaced_wherever_they_stand() -> None:
    shared = nn.Conv2d(32, 32, 3)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), shared, nn.ReLU(), shared, nn.Conv2d(32, 64, 3, groups=2))
    before = sum(p.numel() for p in model.parameters())
    changed = FactorizedConv(part=0.25, min_channels=32).prepare(model)
    assert changed[1] is changed[3] and changed[1].narrow.out_channels == 8
    assert type(changed[0]) is type(changed[4]) is nn.Conv2d, "few channels; in groups"
    saved = 32 * 32 * 9 - 8 * (32 * 9 + 32)
    assert sum(p.numel() for p in changed.parameters()) == before - saved


def test_what_saves_nothing_or_is_not_there_is_refused() -> None:
    with pytest.raises(SettingError, match="factorized_conv.convs: has nothing to change: .* 256 channels"):
        FactorizedConv().prepare(nn.Sequential(nn.Conv2d(3, 8, 3)))
    with pytest.raises(
        SettingError, match="factorized_conv.part: 0.9 of the channels saves no weight .* 0. Lower it"
    ):
        FactorizedConv(part=0.9, min_channels=8).prepare(nn.Sequential(nn.Conv2d(8, 8, 1)))


@pytest.mark.parametrize(
    ("convs", "problem"), [((), "has nothing to change: .*"), (("0",), "'0' matches no Conv2d.*")]
)
def test_a_technique_that_misses_the_convolutions_is_told_what_replaced_them(
    convs: tuple[str, ...], problem: str
) -> None:
    techniques = [find("squeeze_excite")(convs=convs), FactorizedConv()]
    with pytest.raises(
        SettingError,
        match=f"squeeze_excite.convs: {problem}; before it factorized_conv gave layers other shapes",
    ):
        prepare(nn.Sequential(nn.Conv2d(256, 256, 3)), techniques, seed=0)
    with pytest.raises(SettingError) as alone:
        prepare(nn.Sequential(nn.Linear(2, 2)), techniques[:1], seed=0)
    assert "before it" not in str(alone.value)


def test_a_bundle_makes_it_again(tmp_path: Path) -> None:
    again_from_its_bundle(tmp_path, FactorizedConv(part=0.5, min_channels=4))


@pytest.mark.parametrize("adapters", ["lora", "ia3"])
def test_adapters_which_would_freeze_the_factors_are_refused(adapters: str) -> None:
    with pytest.raises(PlanConflict, match="they freeze the factors"):
        check([FactorizedConv(), find(adapters)()])
