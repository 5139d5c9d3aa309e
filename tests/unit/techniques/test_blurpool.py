from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from snugfit.errors import SettingError
from snugfit.techniques.learning.blurpool import BlurPool, blurred
from tests.unit.techniques.model_changes import again_from_its_bundle
from tests.unit.techniques.settings import refuses


def test_impossible_settings_are_refused() -> None:
    refuses(BlurPool, min_channels=0)
    with pytest.raises(SettingError, match="blurpool.max_pools: must be true where convs is false"):
        BlurPool(convs=False, max_pools=False)


@pytest.mark.parametrize("stride", [1, 2, 3, (2, 1)])
@pytest.mark.parametrize("size", [(1, 1), (5, 4), (8, 9)])
def test_it_is_a_convolution_with_the_triangle_filter(size: tuple[int, int], stride: int) -> None:
    images = torch.randn(2, 3, *size, dtype=torch.float64)
    tent = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    kernel = (tent.view(3, 1) * tent / 16).expand(3, 1, 3, 3)
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    expected = F.conv2d(padded, kernel, stride=stride, groups=3)
    torch.testing.assert_close(blurred(images, stride), expected)


@pytest.mark.parametrize("kernel", [2, 3, (3, 2)])
@pytest.mark.parametrize(
    "options", [{}, {"padding": 1}, {"stride": 3}, {"stride": (1, 2)}, {"dilation": 2, "stride": 2}]
)
@pytest.mark.parametrize("size", [(9, 8), (7, 12)])
def test_outputs_have_the_size_of_torchs_maximum(
    kernel: int, options: dict[str, object], size: tuple[int, int]
) -> None:
    pool = nn.MaxPool2d(kernel, **options)
    images = torch.randn(2, 16, *size)
    expected = pool(images).shape
    assert BlurPool().prepare(nn.Sequential(pool))(images).shape == expected


def test_a_shifted_image_gives_nearly_the_same() -> None:
    """What it is for: stripes that a stride would see or not see, by where they begin."""
    torch.manual_seed(0)

    def made() -> nn.Module:
        return nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 1, 3, stride=2, bias=False))

    plain, smooth = made(), BlurPool(min_channels=1).prepare(made())
    smooth.load_state_dict(plain.state_dict())
    images = torch.randn(64, 1, 40, 40)
    changes = []
    for model in (plain, smooth):
        one, other = model(images)[..., 1:-1], model(images.roll(1, dims=-1))[..., 1:-1]
        changes.append(float((one - other).detach().norm() / one.detach().norm()))
    assert changes[1] < 0.6 * changes[0]


def test_what_has_no_stride_or_few_channels_stays() -> None:
    layers = [
        nn.Conv2d(3, 16, 3, stride=2),
        nn.Conv2d(16, 16, 3),
        nn.MaxPool2d(3, 1),
        nn.Conv2d(16, 32, 1, stride=2),
    ]
    model = BlurPool().prepare(nn.Sequential(*layers, nn.MaxPool2d(2, return_indices=True)))
    assert [bool(layer._forward_pre_hooks) for layer in model] == [False, False, False, True, False]
    assert type(model[2]) is type(model[4]) is nn.MaxPool2d
    pooled = BlurPool(convs=False).prepare(nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 1, stride=2)))
    assert type(pooled[0]) is not nn.MaxPool2d and not pooled[1]._forward_pre_hooks


def test_a_model_without_strides_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"blurpool: has nothing to change: .* 16 channels \(min_channels\)"
    ):
        BlurPool().prepare(nn.Sequential(nn.Conv2d(3, 64, 7, stride=2)))


def test_a_bundle_makes_it_again(tmp_path: Path) -> None:
    again_from_its_bundle(tmp_path, BlurPool(min_channels=4))
