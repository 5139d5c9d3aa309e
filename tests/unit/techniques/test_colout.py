from __future__ import annotations

import pytest
import torch
from torch import Tensor

from snugfit.core.batch import Batch, Share
from snugfit.core.selection import check
from snugfit.errors import SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.colout import ColOut, remaining_lines
from tests.unit.techniques.settings import MOMENT, context, refuses


@pytest.mark.parametrize(("setting", "value"), [("rows", 1.0), ("rows", -0.1), ("columns", 1.0)])
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(ColOut, **{setting: value})


def test_to_leave_out_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="colout.rows: must be above 0 where columns is 0, found 0"):
        ColOut(rows=0, columns=0)


def thin(batch: Batch, **settings: float) -> Tensor:
    seams = ColOut(**settings).seams(context())
    assert seams.batch is not None
    images: Tensor = seams.batch(batch, MOMENT).data[0]
    return images


def numbered(rows: int) -> Batch:
    """Each pixel is the number of its row, and in the second channel of its column."""
    down, across = torch.meshgrid(torch.arange(20.0), torch.arange(10.0), indexing="ij")
    return Batch.of((torch.stack([down, across]).expand(rows, 2, 20, 10), torch.arange(rows)))


def test_each_image_loses_lines_of_its_own_and_keeps_the_order_of_the_others() -> None:
    images = thin(numbered(100), rows=0.25, columns=0.2)
    assert images.shape == (100, 2, 15, 8)
    down, across = images[:, 0, :, 0], images[:, 1, 0, :]
    assert torch.equal(images[:, 0], down.unsqueeze(2).expand(100, 15, 8))
    assert torch.equal(images[:, 1], across.unsqueeze(1).expand(100, 15, 8))
    assert (down.diff(dim=1) > 0).all() and (across.diff(dim=1) > 0).all()
    assert len(down.unique(dim=0)) > 90
    often = torch.bincount(down.long().flatten(), minlength=20) / 100
    assert ((often > 0.55) & (often < 0.95)).all(), "each line as often as the others"


def test_one_line_stays_at_least_and_one_direction_may_be_left_alone() -> None:
    assert remaining_lines(torch.rand(3, 4), part=0.99).shape == (3, 1)
    assert thin(numbered(2), rows=0.0, columns=0.5).shape == (2, 2, 20, 5)


def test_a_rank_leaves_out_of_its_rows_what_one_process_would() -> None:
    whole = thin(numbered(7))
    part = Batch(data=(numbered(3).data[0], torch.arange(3)), rows=3, share=Share(counts=(4, 3), rank=1))
    assert torch.equal(thin(part), whole[4:])


def test_what_is_no_image_and_labels_of_pixels_are_refused() -> None:
    with pytest.raises(SettingError, match="colout: the batch has no images"):
        thin(Batch.of((torch.zeros(4, 3), torch.arange(4))))
    with pytest.raises(SettingError, match="colout: the labels have an entry for each pixel"):
        thin(Batch.of((torch.zeros(2, 1, 6, 6), torch.zeros(2, 6, 6, dtype=torch.int64))))


def test_it_goes_with_what_else_changes_images() -> None:
    check([find(name)() for name in ("colout", "cutout", "cutmix", "progressive_resizing")])
