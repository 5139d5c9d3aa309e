from __future__ import annotations

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch, Share
from snugfit.core.selection import check
from snugfit.errors import SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.cutout import CutOut, covered
from tests.unit.techniques.settings import MOMENT, context, refuses


@pytest.mark.parametrize(
    ("setting", "value"), [("length", 0), ("length", 1.5), ("length", float("nan")), ("holes", 0)]
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(CutOut, **{setting: value})


def cut(batch: Batch, **settings: float) -> Tensor:
    seams = CutOut(**settings).seams(context())
    assert seams.batch is not None
    images: Tensor = seams.batch(batch, MOMENT).data[0]
    return images


def ones(rows: int, *size: int) -> Batch:
    return Batch.of((torch.ones(rows, 3, *size), torch.arange(rows)))


def test_each_image_has_a_square_of_zeros_of_its_own_in_all_channels() -> None:
    images = cut(ones(200, 12, 16), length=0.5)
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    holes = images[:, 0] == 0
    counts = holes.flatten(1).sum(dim=1)
    assert counts.max() == 36 and counts.min() >= 9  # at a corner a quarter of the square is left
    assert len(holes.unique(dim=0)) > 80
    for hole in holes:
        rows, columns = hole.any(dim=1), hole.any(dim=0)
        assert torch.equal(hole, rows.unsqueeze(1) & columns)  # a rectangle


def test_centres_are_anywhere() -> None:
    images = covered(torch.ones(4000, 1, 5, 5), torch.rand(4000, 1, 2), length=0.2)
    often = (images == 0).float().mean(dim=(0, 1))
    torch.testing.assert_close(often, torch.full((5, 5), 1 / 25), atol=0.012, rtol=0)


def test_the_images_that_were_given_stay_as_they_were() -> None:
    batch = ones(4, 8, 8)
    assert (cut(batch) == 0).any()
    assert (batch.data[0] == 1).all()


def test_a_rank_covers_its_rows_as_one_process_would() -> None:
    whole = cut(ones(7, 8, 8))
    part = Batch(data=(torch.ones(3, 3, 8, 8), torch.arange(3)), rows=3, share=Share(counts=(4, 3), rank=1))
    assert torch.equal(cut(part), whole[4:])


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(SettingError, match="cutout: the batch has no images, floating tensors of shape"):
        cut(Batch.of((torch.zeros(4, 3), torch.arange(4))))


def test_it_goes_with_what_else_changes_images() -> None:
    check([find(name)() for name in ("cutout", "mixup", "progressive_resizing")])
