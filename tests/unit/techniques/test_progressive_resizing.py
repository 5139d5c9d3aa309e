from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from snugfit.core.batch import Batch
from snugfit.core.technique import Moment
from snugfit.errors import SettingError
from snugfit.techniques.learning.progressive_resizing import ProgressiveResizing, resized, scale_at
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("initial", 0),
        ("initial", 1),
        ("delay_fraction", -0.1),
        ("delay_fraction", 1.0),
        ("size_increment", 0),
    ],
)
def test_an_impossible_setting_is_refused(setting: str, value: float) -> None:
    refuses(ProgressiveResizing, **{setting: value})


def test_delay_and_finetuning_must_leave_a_part_of_the_run_to_grow_in() -> None:
    with pytest.raises(SettingError, match=r"progressive_resizing.finetune_fraction: must be in \[0, 0.5\)"):
        ProgressiveResizing(delay_fraction=0.5, finetune_fraction=0.5)


def test_a_run_of_unknown_length_is_refused() -> None:
    with pytest.raises(SettingError, match="progressive_resizing: needs the length of the run"):
        ProgressiveResizing().seams(context())


def windows(data: Any, total: int = 10, **settings: Any) -> list[Any]:
    seams = ProgressiveResizing(**settings).seams(context(total_updates=total))
    assert seams.batch is not None
    return [seams.batch(Batch.of(data), Moment(updates, updates, 0)).data for updates in range(total)]


def test_images_grow_from_the_initial_part_to_their_size_and_stay_there() -> None:
    data = {"pixel_values": torch.randn(2, 3, 32, 16), "labels": torch.tensor([0, 1])}
    sides = [
        found["pixel_values"].shape[2] for found in windows(data, delay_fraction=0.2, finetune_fraction=0.3)
    ]
    assert sides[:3] == [16, 16, 16] and sides[7:] == [32, 32, 32]
    assert sides == sorted(sides) and len(set(sides)) > 3
    assert all(side % 4 == 0 for side in sides)


def test_the_last_part_of_the_run_is_on_the_images_as_they_are() -> None:
    images = torch.randn(2, 3, 8, 8)
    assert windows((images, torch.tensor([0, 1])))[-1][0] is images


def test_growth_is_linear_between_delay_and_finetuning() -> None:
    assert scale_at(0.45, initial=0.4, delay=0.3, finetune=0.4) == pytest.approx(0.7)


def test_a_constant_image_stays_constant() -> None:
    found = resized(torch.full((1, 1, 9, 9), 3.0), 0.5, increment=1)
    torch.testing.assert_close(found, torch.full((1, 1, 4, 4), 3.0))


def test_pixels_between_the_samples_are_not_passed_over() -> None:
    """Stripes of one pixel become grey: without antialiasing they would become other stripes."""
    stripes = (torch.arange(16) % 2).float().expand(1, 1, 16, 16)
    found = resized(stripes, 5 / 16, increment=1)
    assert found.std() < 0.1
    plain = F.interpolate(stripes, size=(5, 5), mode="bilinear", align_corners=False)
    assert plain.std() > 0.2


@pytest.mark.parametrize("scale", [0.3, 0.5, 0.7])
def test_an_image_smaller_than_the_increment_stays_as_it_is(scale: float) -> None:
    assert resized(torch.zeros(1, 1, 3, 3), scale, increment=4).shape == (1, 1, 3, 3)


def test_what_is_no_image_stays() -> None:
    data = {
        "pixel_values": torch.randn(2, 1, 8, 8),
        "ids": torch.ones(2, 8, 8),
        "labels": torch.tensor([0, 1]),
    }
    found = windows(data)[0]
    assert found["ids"] is data["ids"] and found["labels"] is data["labels"]
    assert found["pixel_values"].shape == (2, 1, 4, 4)


def test_a_batch_without_images_is_refused() -> None:
    with pytest.raises(SettingError, match="progressive_resizing: the batch has no images"):
        windows((torch.randn(2, 8), torch.tensor([0, 1])))


def test_labels_of_pixels_are_refused() -> None:
    with pytest.raises(SettingError, match="progressive_resizing: the labels have an entry for each pixel"):
        windows((torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_images_in_16_bit_are_resized_in_float32_and_stay_in_16_bit(dtype: torch.dtype) -> None:
    images = torch.randn(2, 3, 8, 8).to(dtype)
    found = resized(images, 0.5, increment=1)
    assert found.dtype == dtype
    assert torch.equal(found, resized(images.float(), 0.5, increment=1).to(dtype))
