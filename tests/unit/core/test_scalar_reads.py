from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from snugfit.core.gradients import Gradients
from snugfit.core.scalar_reads import is_fake, read, read_scalars


def test_a_real_tensor_gives_its_numbers() -> None:
    assert read(torch.tensor([[1, 2], [3, 4]]), assume=None) == [[1, 2], [3, 4]]
    assert read(torch.tensor(1.5, requires_grad=True), assume=None) == 1.5
    assert read_scalars([torch.tensor(1.5), torch.tensor(2)], assume=[]) == [1.5, 2]


def test_a_fake_tensor_gives_what_is_assumed() -> None:
    with FakeTensorMode():
        fake = torch.ones(3)
        assert read(fake, assume=[2, 1]) == [2, 1]
        assert read_scalars([fake[0], fake[1]], assume=[0.5, 0.25]) == [0.5, 0.25]


def test_one_fake_scalar_is_enough_to_assume_all() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.zeros(()))
    assert read_scalars([torch.ones(()), fake], assume=[7.0, 8.0]) == [7.0, 8.0]


def test_fake_and_real_are_told_apart() -> None:
    class Sub(torch.Tensor):
        pass

    with FakeTensorMode():
        assert is_fake(torch.ones(1))
        assert is_fake(nn.Parameter(torch.ones(1)))
    for real in (torch.ones(1), nn.Parameter(torch.ones(1)), torch.ones(1).as_subclass(Sub)):
        assert not is_fake(real)


def test_what_wraps_a_fake_tensor_is_fake() -> None:
    """A shard, for one: what is made for it must not be kept for real ones."""
    real = TwoTensor(torch.ones(1), torch.ones(1))
    with FakeTensorMode():
        fake = TwoTensor(torch.ones(1), torch.ones(1))

    assert is_fake(fake)
    assert not is_fake(real)


@pytest.mark.parametrize(
    ("weight", "nonfinite", "usable"),
    [(2.0, 0.0, True), (0.0, 0.0, False), (2.0, 1.0, False), (float("nan"), 0.0, False)],
)
@pytest.mark.parametrize("known", [True, False])
def test_gradients_are_usable_when_finite_and_of_something(
    weight: float, nonfinite: float, usable: bool, known: bool
) -> None:
    given = weight if known else torch.tensor(weight)
    assert Gradients(torch.tensor(1.0), given, torch.tensor(nonfinite)).usable() is usable


def test_a_dry_run_assumes_that_an_update_is_made() -> None:
    with FakeTensorMode():
        assert Gradients(torch.ones(()), torch.ones(()), torch.ones(())).usable()
