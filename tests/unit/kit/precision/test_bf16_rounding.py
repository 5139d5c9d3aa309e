from __future__ import annotations

import math

import pytest
import torch

from snugfit.kit.precision.bf16_rounding import rounded_stochastically, with_compensation


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("value", [1 / 3, -1 / 3, 1e-30, -3.2e30, 1.0 + 2**-10, 1e-40])
def test_the_mean_of_what_is_rounded_is_the_number(value: float) -> None:
    count = 200_000
    wide = torch.full((count,), value)
    low = rounded_stochastically(wide, source()).double()
    found = low.unique()
    assert len(found) == 2 and found[0] < wide[0].double() < found[1], "not its two neighbours"
    gap = float(found[1] - found[0])
    # the mean of `count` draws of either neighbour is this far off at most, in all but one of 10^6 cases
    assert abs(float(low.mean() - wide[0].double())) <= 5 * gap / 2 / math.sqrt(count)


def test_what_is_in_bf16_already_stays() -> None:
    numbers = torch.randn(10_000, generator=source()).bfloat16().float()
    assert torch.equal(rounded_stochastically(numbers, source()).float(), numbers)


def test_what_is_not_finite_stays_so() -> None:
    bits = torch.tensor([0x7F800000, 0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, -0x800000], dtype=torch.int32)
    odd = bits.view(torch.float32).repeat(1000)
    assert not rounded_stochastically(odd, source()).isfinite().any()


def test_the_draws_do_not_depend_on_how_the_numbers_lie_and_the_result_lies_as_they_do() -> None:
    wide = torch.randn(30, 40, generator=source())
    across = wide.t().contiguous().t()
    found = rounded_stochastically(across, source())
    assert found.stride() == across.stride() != wide.stride()
    assert torch.equal(found, rounded_stochastically(wide, source()))


def test_the_same_generator_rounds_the_same_way() -> None:
    wide = torch.randn(1000, generator=source())
    one, other, third = (rounded_stochastically(wide, source(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, other) and not torch.equal(one, third)


def test_a_number_and_its_compensation_have_16_bits_together() -> None:
    wide = torch.randn(10_000, generator=source())
    low, rest = with_compensation(wide)
    assert torch.equal(low, wide.bfloat16())
    error = ((low.double() + rest.double() - wide.double()) / wide.double()).abs().max()
    assert error <= 2**-17 < 2**-9 < ((low.double() - wide.double()) / wide.double()).abs().max() * 1.01
