from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from snugfit.kit.optimizers.state_layout import laid_out_like
from snugfit.techniques.learning.adafactor import empty_moments


def channels_last(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape).contiguous(memory_format=torch.channels_last))


def as_read_from_a_file(moments: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: moment.clone(memory_format=torch.contiguous_format) for name, moment in moments.items()}


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (8, 4, 1, 1), (8, 4, 3, 1), (8, 1, 3, 3)])
def test_moments_of_rows_and_columns_lie_after_a_checkpoint_as_they_were_made(shape: tuple[int, ...]) -> None:
    parameter = channels_last(*shape)
    made = empty_moments(parameter)
    loaded = laid_out_like(parameter, as_read_from_a_file(made))
    assert {name: moment.stride() for name, moment in loaded.items()} == {
        name: moment.stride() for name, moment in made.items()
    }


def test_the_numbers_stay_when_a_moment_is_laid_out_anew() -> None:
    parameter = channels_last(8, 4, 3, 3)
    moments = {"whole": torch.randn(8, 4, 3, 3), "rows": torch.randn(8, 4, 3, 1), "step": torch.tensor(3.0)}
    loaded = laid_out_like(parameter, moments)
    assert all(torch.equal(loaded[name], moment) for name, moment in moments.items())
    assert loaded["whole"].stride() == parameter.stride() and loaded["step"] is moments["step"]


def test_what_is_larger_than_its_parameter_is_left_as_it_is() -> None:
    other = torch.randn(2, 9).t()
    assert laid_out_like(nn.Parameter(torch.zeros(3, 2)), other) is other
