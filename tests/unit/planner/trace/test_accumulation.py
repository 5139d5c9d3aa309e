"""Gradients that are added up: in place where nobody else holds them, as the engine does with real ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.planner.trace.accumulation import is_sole


class Sums(TorchDispatchMode):
    """Keeps of each addition whether the first tensor is held by the engine alone."""

    def __init__(self) -> None:
        super().__init__()
        self.sole: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.add.Tensor:
            self.sole.append(is_sole(args[0]))
        return func(*args, **(kwargs or {}))


def read_twice(given: Tensor) -> Tensor:
    return given.exp().sum() + given.sin().sum()


def handed_to_two(given: Tensor) -> Tensor:
    later = given * 3
    summed = given * 2 + given
    return later.sum() + summed.sum()


def one_number_for_all(given: Tensor) -> Tensor:
    return given.exp().sum() + given.sum()


@pytest.mark.parametrize(
    ("read", "sole"), [(read_twice, [True]), (handed_to_two, [False, True]), (one_number_for_all, [False])]
)
def test_a_gradient_that_others_hold_or_that_is_not_dense_is_not_added_to(
    read: Callable[[Tensor], Tensor], sole: list[bool]
) -> None:
    with FakeTensorMode():
        loss = read(torch.ones(4, 4, requires_grad=True) * 1)
        with Sums() as sums:
            loss.backward()  # type: ignore[no-untyped-call]
    assert sums.sole == sole
