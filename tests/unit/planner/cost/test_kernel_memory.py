"""What a kernel takes within itself, measured once on this processor."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from snugfit.planner.cost import workspace
from snugfit.planner.cost.kernel_memory import measured_bytes

_aten: Any = torch.ops.aten


def test_what_is_taken_and_given_back_counts_and_what_is_left_does_not() -> None:
    found = measured_bytes(lambda given: (given + 1).sum(), (torch.ones(5000),), {})
    assert found == pytest.approx(4 * 5000, abs=16)  # the number 1 is a tensor too


def test_an_operator_on_fake_tensors_is_run_on_real_ones_once_for_each_kind() -> None:
    runs: list[tuple[int, ...]] = []

    def doubled(given: Tensor, times: int) -> Tensor:
        runs.append(tuple(given.shape))
        assert type(given) is Tensor
        return given * times

    with FakeTensorMode():
        for rows in (3, 3, 4):
            assert measured_bytes(doubled, (torch.empty(rows, 2), 2), {}) <= 16  # the number is a tensor too
    assert runs == [(3, 2), (4, 2)]


@pytest.mark.parametrize(
    ("groups", "transposed", "dtype", "measured"),
    [
        (1, False, torch.float32, False),
        (4, False, torch.float32, True),
        (1, True, torch.float32, True),
        (1, False, torch.bfloat16, True),
    ],
)
def test_a_convolution_whose_layouts_depend_on_the_processor_is_measured_and_others_follow_a_rule(
    groups: int, transposed: bool, dtype: torch.dtype, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "measured_bytes", lambda *args: 7)
    given, weight = torch.empty(2, 8, 6, 6, dtype=dtype), torch.empty(8, 8 // groups, 3, 3, dtype=dtype)
    shapes = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    forward = workspace.workspace_bytes(_aten.convolution.default, (given, weight, None, *shapes), {}, given)
    back = (given, given, weight, [0], *shapes, [True, True, False])
    found = [forward, workspace.workspace_bytes(_aten.convolution_backward.default, back, {}, given)]
    assert [each == 7 for each in found] == [measured, measured]


def test_garbage_that_would_be_collected_meanwhile_is_not_the_kernels() -> None:
    def adds(given: Tensor) -> Tensor:
        made = given + 1
        gc.set_threshold(1)
        more = [[] for _ in range(100)]  # objects that a collection comes after
        return made if more else given

    threshold = gc.get_threshold()
    gc.set_threshold(1 << 30)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):  # which knows it ever after
        ring: list[object] = [torch.ones(1 << 20)]
    ring.append(ring)
    del ring
    try:
        assert measured_bytes(adds, [torch.ones(5000)], {}) < 1024
    finally:
        gc.set_threshold(*threshold)
