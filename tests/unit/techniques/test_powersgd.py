"""On one device; what several come to is in tests/ranks/test_rank_compression.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.progress import Progress
from snugfit.core.selection import check
from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict, SettingError, SnugfitWarning
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.numerics.bf16_gradients import BF16Gradients
from snugfit.techniques.numerics.fp16_gradients import FP16Gradients
from snugfit.techniques.numerics.powersgd import Compression, PowerSGD, _orthogonalize
from tests.laws import problems
from tests.unit.techniques.settings import context, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(PowerSGD, rank=0)
    refuses(PowerSGD, start=1.5)
    refuses(PowerSGD, start=-1)
    refuses(PowerSGD, min_compression_rate=0.0)


def test_a_fraction_needs_the_length_of_the_run() -> None:
    with pytest.raises(SettingError, match="^powersgd: needs the number of updates of the run"):
        PowerSGD(start=0.1).seams(context())


def test_one_device_computes_as_without_it_and_says_so() -> None:
    problem = problems.reader(())
    plain = problems.make_step(problem, ())
    with pytest.warns(SnugfitWarning, match="^powersgd: does nothing, as one device exchanges no gradients"):
        step = problems.make_step(problem, (PowerSGD(start=0),))
    for window in problem.windows():
        plain(window), step(window)
    weights = problems.weights(plain)
    assert all(torch.equal(found, weights[name]) for name, found in problems.weights(step).items())


def test_one_device_goes_on_from_several_without_what_they_left_out() -> None:
    compression = Compression(rank=1, min_compression_rate=2.0)
    matrices = {0: {"names": ["weight"], "left": torch.ones(2), "right": torch.ones(3)}}
    of_two = {"updates": 7, "left_out": {"weight": torch.ones(2, 2, 3)}, "matrices": matrices}
    compression.load_state_dict(of_two)
    assert compression.state_dict() == {"updates": 7, "left_out": {}, "matrices": matrices}
    compression.updated(nn.Linear(3, 2), Progress(updates=8))
    assert compression.state_dict()["updates"] == 8


def test_two_gradients_a_window_are_refused() -> None:
    with pytest.raises(PlanConflict, match="'powersgd' and 'sam' exclude each other: it computes two grad"):
        check([PowerSGD(), SAM()])


@pytest.mark.parametrize("other", [BF16Gradients(), FP16Gradients()], ids=str)
def test_gradients_are_exchanged_in_one_way(other: Technique) -> None:
    with pytest.raises(PlanConflict, match="both give the exchange, and a run has one"):
        check([PowerSGD(), other])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.bfloat16, 0.01)])
def test_columns_that_are_multiples_of_each_other_become_orthonormal(
    dtype: torch.dtype, tolerance: float
) -> None:
    """Each matrix by itself, and in place; numbers of 16 bits, for which torch has no such decomposition, by those of 32."""
    columns = torch.tensor([[0.3, -1.0, 0.7], [1e-12, 3e-12, 5e-12]], dtype=dtype)
    matrices = torch.stack([columns, 3 * columns, -7 * columns], dim=-1)
    _orthogonalize(matrices)
    products = (matrices.transpose(1, 2) @ matrices).double()
    assert (products - torch.eye(3)).abs().max() <= tolerance


def test_a_single_column_keeps_its_direction_and_one_of_zeros_stays_one() -> None:
    matrices = torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float64).unsqueeze(-1)
    _orthogonalize(matrices, epsilon=1e-8)
    expected = torch.tensor([[0.6, -0.8], [0.0, 0.0]], dtype=torch.float64).unsqueeze(-1)
    assert torch.allclose(matrices, expected, rtol=0, atol=1e-8)
