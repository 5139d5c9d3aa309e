from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import Compute
from snugfit.step.step import Step
from snugfit.techniques.learning.hard_examples import HardExamples, hardest
from tests.unit.techniques.settings import context, refuses

NAN = float("nan")


@pytest.mark.parametrize("value", [0, -0.5, 1.1, NAN])
def test_an_impossible_fraction_is_refused(value: float) -> None:
    refuses(HardExamples, fraction=value)


@pytest.mark.parametrize(
    ("losses", "fraction", "expected"),
    [
        ([1.0, 5.0, 3.0, 4.0], 0.5, [1, 3]),
        ([1.0, 5.0, 3.0, 4.0], 0.01, [1]),
        ([1.0, 5.0, 3.0, 4.0], 1.0, [0, 1, 2, 3]),
        ([1.0, 5.0, 3.0], 0.5, [1, 2]),
        ([2.0, 2.0, 2.0], 0.4, [0, 1]),
        ([-1.0, 0.0, -2.0], 0.3, [1]),
    ],
)
def test_the_largest_losses_are_kept_rounded_up_with_ties_to_the_first(
    losses: list[float], fraction: float, expected: list[int]
) -> None:
    assert hardest(LossTerms(torch.tensor(losses)), fraction).tolist() == expected


@pytest.mark.parametrize(
    ("fraction", "rows", "count"), [(0.07, 100, 7), (0.55, 100, 55), (0.29, 100, 29), (1 / 3, 3, 1)]
)
def test_a_fraction_is_not_rounded_up_by_the_error_of_a_float(fraction: float, rows: int, count: int) -> None:
    assert len(hardest(LossTerms(torch.arange(float(rows))), fraction)) == count


def test_rows_of_weight_zero_come_last_whatever_their_value() -> None:
    terms = LossTerms(torch.tensor([9.0, 1.0, NAN, 2.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert hardest(terms, 0.5).tolist() == [1, 3]


def test_a_row_that_is_not_finite_counts_as_the_hardest() -> None:
    assert hardest(LossTerms(torch.tensor([9.0, NAN, 1.0])), 0.3).tolist() == [1]


class Ranked:
    """A window whose losses are given."""

    def __init__(self, losses: list[float], batch: Batch) -> None:
        self.losses, self.batch = losses, batch

    def terms(self) -> LossTerms:
        return LossTerms(torch.tensor(self.losses))

    def select(self, rows: list[int]) -> Ranked:
        return Ranked([self.losses[row] for row in rows], self.batch.select(rows))


def run(compute: Any, fraction: float) -> tuple[Gradients, list[Any]]:
    seen: list[Any] = []

    def next(selected: Compute) -> Gradients:
        seen.append(selected)
        return Gradients(torch.tensor(1.0), 1.0, torch.tensor(0.0))

    seams = HardExamples(fraction=fraction).seams(context())
    assert seams.gradients is not None
    return seams.gradients(next)(compute), seen


def test_only_the_hardest_rows_are_passed_on() -> None:
    found, (selected,) = run(Ranked([1.0, 5.0, 3.0], Batch.of(torch.arange(3))), 0.6)
    assert selected.batch.data.tolist() == [1, 2]
    assert found.usable()


def test_a_window_is_not_used_when_a_row_left_out_was_not_finite() -> None:
    """Batch norm has seen that row: the statistics of the window are spoilt."""
    found, (selected,) = run(Ranked([NAN, NAN, NAN], Batch.of(torch.arange(3))), 0.3)
    assert selected.batch.data.tolist() == [0]
    assert not found.usable()


def test_batch_norm_is_not_spoilt_by_a_row_that_was_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    step = Step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), "cross_entropy", [HardExamples(fraction=0.5)]
    )
    numbers = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [NAN, NAN]])
    assert not step((numbers, torch.tensor([0, 1, 0, 1]))).applied
    assert all(buffer.isfinite().all() for buffer in model.buffers())


def test_a_dry_run_assumes_that_the_longest_rows_are_kept() -> None:
    with FakeTensorMode():
        compute = Ranked([1.0, 1.0, 1.0, 1.0], Batch({}, 4, lengths=(2, 4, 1, 3)))
        selections: list[list[int]] = []
        compute.select = lambda rows: selections.append(rows) or compute  # type: ignore[assignment, func-returns-value]
        run(compute, 0.5)
    assert selections == [[1, 3]]


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_batch_norm_never_gets_a_single_hard_example(micro_batch: int | None) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    seen: list[int] = []
    model[1].register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    for fraction, sizes in ((0.1, [2]), (0.3, [3])):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = Step(model, optimizer, techniques=[HardExamples(fraction)], micro_batch=micro_batch)
        seen.clear()
        assert step((torch.randn(10, 4), torch.randint(0, 2, (10,)))).applied
        assert min(seen) >= 2 and seen[-len(sizes) :] == sizes
