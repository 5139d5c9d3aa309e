from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit.mixing import share_of
from snugfit.techniques.learning.cutmix import CutMix, area_outside, draw_boxes, pasted
from snugfit.techniques.learning.mixup import Mixup
from tests.unit.techniques.settings import MOMENT, context, refuses

SIZE = (6, 10)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_alpha_is_refused(value: float) -> None:
    refuses(CutMix, alpha=value)


def cut(images: Tensor, labels: Tensor) -> Batch:
    seams = CutMix().seams(context())
    assert seams.batch is not None
    return seams.batch(Batch.of((images, labels)), MOMENT)


def numbered(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Every pixel is the number of its image."""
    return torch.arange(rows, dtype=dtype).view(-1, 1, 1, 1).expand(rows, 2, *SIZE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_the_share_is_the_part_of_the_pixels_that_are_the_rows_own(dtype: torch.dtype) -> None:
    found = cut(numbered(7, dtype), torch.arange(7))
    share = share_of(found)
    assert share is not None
    for row, other in enumerate([1, 0, 3, 2, 5, 4, 6]):
        own = found.data[0][row] == row
        assert float(own.float().mean()) == pytest.approx(float(share[row]))
        assert (found.data[0][row][~own] == other).all()
    assert share[6] == 1.0
    assert ((share > 0) & (share < 1)).any(), "nothing was cut"


def test_both_rows_of_a_pair_swap_one_box_and_pairs_have_boxes_of_their_own() -> None:
    boxes = draw_boxes(200, SIZE, 1.0, np.random.default_rng(0))
    assert torch.equal(boxes[::2], boxes[1::2])
    assert len(boxes.unique(dim=0)) > 50
    found = pasted(numbered(200), boxes)
    assert torch.equal(found[0] + found[1], torch.ones_like(found[0]))


def test_a_box_stays_inside_of_the_image_and_is_no_larger_than_was_drawn() -> None:
    source, again = np.random.default_rng(1), np.random.default_rng(1)
    boxes = draw_boxes(2000, SIZE, 1.0, source)[::2].numpy()
    part = np.sqrt(1 - again.beta(1.0, 1.0, 1000))
    for length, (low, high) in zip(SIZE, ((0, 1), (2, 3)), strict=True):
        start, end = boxes[:, low], boxes[:, high]
        assert ((start >= 0) & (start <= end) & (end <= length)).all()
        assert (end - start <= part * length).all()
    areas = area_outside(torch.tensor(boxes), SIZE)
    assert ((areas >= 0) & (areas <= 1)).all()


def test_the_images_that_were_given_stay_as_they_were() -> None:
    images = numbered(4).clone()
    cut(images, torch.arange(4))
    assert torch.equal(images, numbered(4))


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(SettingError, match=r"cutmix: needs images of one size.*\(4, 3\)"):
        cut(torch.zeros(4, 3), torch.arange(4))


def test_images_of_two_sizes_are_refused() -> None:
    seams = CutMix().seams(context())
    assert seams.batch is not None
    data = {"a": torch.zeros(2, 1, 4, 4), "b": torch.zeros(2, 1, 8, 8), "labels": torch.zeros(2)}
    with pytest.raises(SettingError, match=r"found inputs of shape \(2, 1, 4, 4\), \(2, 1, 8, 8\)"):
        seams.batch(Batch.of(data), MOMENT)


def test_labels_of_pixels_are_refused() -> None:
    with pytest.raises(SettingError, match="cutmix: the labels have an entry for each pixel"):
        cut(numbered(2), torch.zeros(2, *SIZE, dtype=torch.int64))


def test_it_excludes_mixup_by_its_place() -> None:
    with pytest.raises(PlanConflict, match="both stand at the stage 'mix'"):
        check([CutMix(), Mixup()])
