"""The private kernels of torch are there and do what is said of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.kit.optimizers import foreach
from snugfit.kit.optimizers.foreach import (
    add_,
    copy_,
    count_nonfinite,
    global_norm,
    gradients_of,
    lerp,
    lerp_,
    scale_,
    sign_,
)
from tests.unit.techniques.live_memory import Live

CPU = torch.device("cpu")
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    "kernel",
    [
        "_foreach_mul_",
        "_foreach_lerp_",
        "_foreach_lerp",
        "_foreach_add_",
        "_foreach_sign_",
        "_foreach_div_",
        "_foreach_clamp_min_",
        "_foreach_clamp_max_",
        "_foreach_copy_",
        "_foreach_norm",
        "_amp_foreach_non_finite_check_and_unscale_",
    ],
)
def test_the_private_kernel_is_still_there(kernel: str) -> None:
    assert callable(getattr(torch, kernel))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_element_anywhere_is_found_and_nothing_is_changed(dtype: torch.dtype, bad: float) -> None:
    good = [torch.tensor([1.0, -0.0, 3.0], dtype=dtype), torch.tensor(2.0), torch.zeros(0)]
    assert float(count_nonfinite(good, CPU)) == 0
    assert good[0].tolist() == [1.0, 0.0, 3.0]
    for place in range(2):
        spoiled = [tensor.clone() for tensor in good]
        spoiled[place].view(-1)[-1] = bad
        assert float(count_nonfinite(spoiled, CPU)) > 0


def test_the_largest_and_smallest_numbers_are_finite_and_kept() -> None:
    extremes = torch.tensor([torch.finfo(torch.float64).max, 5e-324], dtype=torch.float64)
    assert float(count_nonfinite([extremes], CPU)) == 0
    assert extremes.tolist() == [torch.finfo(torch.float64).max, 5e-324]


def test_the_default_dtype_of_the_caller_does_not_matter() -> None:
    foreach._one.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        assert float(count_nonfinite([torch.ones(2)], CPU)) == 0
        assert float(count_nonfinite([torch.tensor([math.nan])], CPU)) > 0
    finally:
        torch.set_default_dtype(torch.float32)
        foreach._one.cache_clear()


def test_no_tensors_at_all_are_finite() -> None:
    assert float(count_nonfinite([], CPU)) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [0.5, torch.tensor(0.5), torch.tensor(0.5, dtype=torch.float64)])
def test_scale_multiplies_tensors_of_any_kind(dtype: torch.dtype, factor: torch.Tensor | float) -> None:
    tensors = [torch.tensor([2.0, 4.0], dtype=dtype), torch.tensor(6.0)]
    scale_(tensors, factor)
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 2.0], 3.0]
    scale_([], factor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lerp_moves_wide_averages_towards_narrow_targets(dtype: torch.dtype) -> None:
    averages = [torch.tensor([1.0]), torch.tensor([4.0], dtype=torch.float64)]
    lerp_(averages, [torch.tensor([2.0], dtype=dtype), torch.tensor([0.0], dtype=dtype)], 0.25)
    assert [float(average) for average in averages] == [1.25, 3.0]
    assert [average.dtype for average in averages] == [torch.float32, torch.float64]


def test_lerp_by_one_arrives_exactly() -> None:
    average = [torch.tensor([1e8])]
    lerp_(average, [torch.tensor([0.1])], 1.0)
    assert torch.equal(average[0], torch.tensor([0.1]))


def test_copy_fills_each_tensor_with_its_source_in_the_tensors_dtype() -> None:
    tensors = [torch.zeros(2), torch.zeros(1, dtype=torch.bfloat16)]
    copy_(tensors, [torch.tensor([1.0, 2.0]), torch.tensor([3.0], dtype=torch.float64)])
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 2.0], [3.0]]
    copy_([], [])


def test_the_norm_is_of_all_tensors_together_and_accumulated_in_float32() -> None:
    assert float(global_norm([torch.tensor([3.0]), torch.tensor([4.0], dtype=torch.float64)])) == 5.0
    many = [torch.ones(70_000, dtype=torch.float16)]  # the sum of squares does not fit into float16
    assert float(global_norm(many)) == pytest.approx(math.sqrt(70_000), rel=1e-6)
    assert float(global_norm([])) == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [1, 4, 100])
def test_the_norm_of_tensors_of_one_type_has_the_bits_of_torchs_own(dtype: torch.dtype, count: int) -> None:
    source = torch.Generator().manual_seed(count)
    tensors = [torch.randn(7, 33, generator=source, dtype=dtype) for _ in range(count)]
    norm = global_norm(tensors)
    assert norm.dtype == dtype and torch.equal(norm, torch.nn.utils.get_total_norm(tensors))


def test_the_norm_of_parameters_and_of_mixed_types_is_torchs_own() -> None:
    mixed = [nn.Parameter(torch.tensor([3.0])), torch.tensor([4.0], dtype=torch.float64), torch.zeros(0)]
    assert float(global_norm(mixed)) == 5.0


def test_the_norm_of_gradients_in_16_bits_takes_one_of_them_in_32_at_a_time() -> None:
    many = [torch.full((64, 1024), 2.0, dtype=torch.bfloat16) for _ in range(8)]
    with Live() as live:
        norm = global_norm([*many, torch.full((16,), 3.0)])
    assert norm.dtype == torch.float32 and float(norm) == pytest.approx(
        math.sqrt(8 * 4 * 65_536 + 144), rel=1e-6
    )
    assert live.peak < 4 * 65_536


def test_the_gradients_are_those_that_are_there() -> None:
    with_one, without = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    with_one.grad = torch.ones(1)
    assert gradients_of([without, with_one]) == [with_one.grad]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_multiple_of_each_other_tensor_is_added(dtype: torch.dtype) -> None:
    tensors = [torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor(3.0)]
    add_(tensors, [torch.tensor([4.0, -4.0], dtype=dtype), torch.tensor(8.0)], -0.25)
    assert [tensor.tolist() for tensor in tensors] == [[0.0, 3.0], 1.0]
    assert [tensor.dtype for tensor in tensors] == [dtype, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_moving_out_of_place_leaves_the_start(dtype: torch.dtype) -> None:
    tensors = [torch.tensor([0.0, 4.0], dtype=dtype), torch.tensor(1.0)]
    moved = lerp(tensors, [torch.tensor([4.0, 0.0], dtype=dtype), torch.tensor(3.0)], 0.25)
    assert [tensor.tolist() for tensor in moved] == [[1.0, 3.0], 1.5]
    assert [tensor.tolist() for tensor in tensors] == [[0.0, 4.0], 1.0]
    assert moved[0].dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "expected"), [(0.0, [-1, -1, 0, 1, 1]), (2.0, [-1, -0.5, 0, 0.25, 1])])
def test_a_sign_has_a_slope_as_wide_as_asked_for(
    dtype: torch.dtype, width: float, expected: list[float]
) -> None:
    tensors = [torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0], dtype=dtype), torch.tensor(-5.0)]
    sign_(tensors, width)
    assert tensors[0].tolist() == expected
    assert float(tensors[1]) == -1.0


def test_no_tensors_at_all_are_left_alone() -> None:
    add_([], [], 1.0)
    sign_([])
    assert lerp([], [], 0.5) == []


def test_an_average_in_32_bits_of_weights_in_16_takes_one_of_them_in_32_at_a_time() -> None:
    averages = [torch.zeros(64, 1024) for _ in range(8)]
    weights = [torch.ones(64, 1024, dtype=torch.bfloat16) for _ in range(8)]
    with Live() as live:
        lerp_([*averages, other := torch.zeros(3)], [*weights, torch.ones(3)], 0.25)
    assert {float(each.unique()) for each in [*averages, other]} == {0.25}
    assert live.peak <= 2 * 4 * 65_536


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_where_the_kernel_is_not_to_be_trusted_norms_tell_as_much(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on MPS, whose kernel forgets what it has found in tensors of another type."""
    monkeypatch.setattr(foreach, "CHECKED_AT_ONCE", set())
    good = [torch.ones(3), torch.zeros(0), torch.tensor(2.0), torch.full((2,), 3e4, dtype=torch.float16)]
    assert float(count_nonfinite(good, CPU)) == 0
    for place in (0, 2, 3):
        spoiled = [tensor.clone() for tensor in good]
        spoiled[place].view(-1)[-1] = bad
        assert float(count_nonfinite(spoiled, CPU)) > 0


def test_the_kernel_is_asked_for_no_type_that_a_gpu_lacks() -> None:
    """CUDA has it for fp32, fp64 and fp16: '"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16''."""
    gpu = torch.device("cuda")
    assert [foreach._checks_at_once(gpu, dtype) for dtype in DTYPES] == [True, True, False, True]
    assert all(foreach._checks_at_once(CPU, dtype) for dtype in DTYPES)
