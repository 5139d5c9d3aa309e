"""Buffers: what a model counts about its inputs belongs to a window's first pass, however many a technique makes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.technique import Technique
from snugfit.training.step import Step
from tests.laws import problems
from tests.laws.problems import make_step


@pytest.mark.parametrize("techniques", problems.singles_and_combinations(), ids=problems.name_of)
def test_a_models_own_statistic_counts_each_row_once(techniques: tuple[Technique, ...]) -> None:
    problem = problems.reader(techniques)
    step = make_step(problem, techniques, micro_batch=2)
    rows = 0
    for window in problem.windows():
        step(window)
        rows += len(window["labels"])
        assert int(step.model.rows_seen) == rows


@pytest.mark.parametrize("techniques", problems.singles_and_combinations(), ids=problems.name_of)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_batch_norm_keeps_the_statistics_of_one_pass_at_the_weights_before_the_update(
    techniques: tuple[Technique, ...], micro_batch: int | None
) -> None:
    problem = problems.normed(techniques)
    step = make_step(problem, techniques, micro_batch=micro_batch)
    norm = step.model.body[1]
    for number, window in enumerate(problem.windows()):
        linear = step.model.body[0]
        mean, variance = by_hand(
            F.linear(window["numbers"], linear.weight, linear.bias).detach(),
            norm.running_mean.clone(),
            norm.running_var.clone(),
            micro_batch,
        )
        assert step(window).applied
        # float64 against the same formula in another order of summation
        torch.testing.assert_close(norm.running_mean, mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(norm.running_var, variance, rtol=1e-12, atol=1e-14)
        assert int(norm.num_batches_tracked) == (number + 1) * (1 if micro_batch is None else 2)


def by_hand(inputs: Tensor, mean: Tensor, variance: Tensor, micro_batch: int | None) -> tuple[Tensor, Tensor]:
    """Ioffe & Szegedy 2015, with torch's momentum of 0.1 and unbiased variance; 7 rows are cut 4 + 3, 5 rows 3 + 2."""
    parts = (
        [inputs]
        if micro_batch is None
        else [inputs[: (len(inputs) + 1) // 2], inputs[(len(inputs) + 1) // 2 :]]
    )
    for part in parts:
        mean = 0.9 * mean + 0.1 * part.mean(dim=0)
        variance = 0.9 * variance + 0.1 * part.var(dim=0, unbiased=True)
    return mean, variance


def test_a_module_that_is_frozen_in_eval_mode_stays_so() -> None:
    step = make_step(problems.normed(()), ())
    step.model.body[1].eval()
    before = step.model.body[1].running_mean.clone()
    step(problems.normed(()).windows()[0])
    assert torch.equal(step.model.body[1].running_mean, before)


def test_a_model_that_arrives_in_eval_mode_is_trained_in_training_mode() -> None:
    problem = problems.normed(())
    step = make_step(problem, (), dropout=0.5)
    step.model.eval()
    step(problem.windows()[0])
    assert all(module.training for module in step.model.modules())


def test_a_part_that_arrives_in_eval_mode_is_trained_in_training_mode() -> None:
    encoder = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).eval()
    model = torch.nn.Sequential(encoder, torch.nn.Linear(4, 2))
    assert model.training
    Step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(module.training for module in model.modules())


class Cached(torch.nn.Module):
    """A linear layer with a cache that grows with the longest batch, as rotary embeddings have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.cache.shape[0] < inputs.shape[0]:
            self.cache = torch.zeros(inputs.shape[0])
        return self.layer(inputs)


def test_a_cache_that_grows_is_neither_saved_nor_in_the_way() -> None:
    def make() -> Step:
        torch.manual_seed(0)
        model = Cached()
        return Step(model, torch.optim.SGD(model.parameters(), lr=0.1))

    first, second = make(), make()
    batch = (torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    assert not first(
        (torch.full((2, 3), torch.nan), batch[1][:2])
    ).applied  # grows in a window that is refused
    first(batch)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second.model.layer.weight, first.model.layer.weight)
    assert second(batch).loss == first(batch).loss
