from __future__ import annotations

import pytest
import torch

from snugfit.planner.cost.operator_costs import op_costs
from snugfit.planner.cost.staged_sums import staged_sums


def summed(shape, dims, dtype=torch.float32):
    given = torch.empty(shape, dtype=dtype, device="meta")
    return staged_sums(given, given.sum(dims))


@pytest.mark.parametrize("shape", [(4096, 16384), (8, 512, 16384), (1, 4096, 16384)])
def test_partial_sums_of_a_bias_are_what_an_h100_took_for_them(shape):
    measured = 142_613_820  # beside all that torch's tensors have, at the peak of an MLP
    assert 0 <= measured - summed(shape, tuple(range(len(shape) - 1))) < 2**14


def test_half_precision_has_partial_sums_of_float32():
    assert summed((4096, 3072), 0, torch.bfloat16) == summed((4096, 3072), 0) == 3072 * 4 * 64 * 32 * 4


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        *[((64, 768), 0), ((4096, 16384), 1), ((4096, 16384), (0, 1)), ((4096, 1 << 22), 0), ((1, 8192), 0)],
        *[((0, 768), 0), ((4096, 0), 0)],
    ],
)
def test_few_rows_or_none_and_sums_over_columns_take_next_to_nothing(shape, dims):
    assert summed(shape, dims) == 0


def test_what_is_not_contiguous_is_not_said_to_take_any():
    given = torch.empty(16384, 4096, device="meta").t()
    assert staged_sums(given, given.sum(0)) == 0


def test_on_a_cpu_a_sum_takes_none():
    given = torch.ones(4096, 64)
    out = given.sum(0)
    assert op_costs(torch.ops.aten.sum.dim_IntList, (given, [0]), {}, out).workspace == 0
