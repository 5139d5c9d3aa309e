"""Buffers: what a model counts about its inputs belongs to a window's first pass, however many a technique makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from snugfit.core.technique import Technique
from snugfit.step.step import Step
from tests.laws import problems
from tests.laws.problems import make_step


@pytest.mark.parametrize("techniques", problems.singles_and_slowly_together(), ids=problems.name_of)
def test_a_models_own_statistic_counts_each_row_once(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    step = make_step(problem, techniques, micro_batch=2)
    rows = 0
    for window in problem.windows():
        step(window)
        rows += len(window["labels"])
        assert int(step.model.rows_seen) == rows


@pytest.mark.parametrize(
    ("make", "techniques"),
    problems.cases(problems.singles_and_together(), problems.with_batch_norm),
    ids=problems.name_of,
)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_batch_norm_keeps_the_statistics_of_one_pass_at_the_weights_before_the_update(
    make: problems.Maker, techniques: tuple[Technique, ...], micro_batch: int | None
) -> None:
    problem = make(techniques)
    step = make_step(problem, techniques, micro_batch=micro_batch)
    norm = step.model.body[1]
    passes = 1 if micro_batch is None else 2
    tracked = 0
    with normalised(*step.model.body[:2]) as inputs:
        for window in problem.windows():
            mean, variance = norm.running_mean.clone(), norm.running_var.clone()
            before = {name: value.clone() for name, value in step.model.body[0].state_dict().items()}
            del inputs[:]
            assert step(window).applied
            assert sum(len(part.values) for part in inputs[:passes]) == len(window["labels"])
            for part in inputs[:passes]:
                assert all(torch.equal(part.weights[name], before[name]) for name in before)
                if norm.training:  # a frozen one keeps its statistics
                    for group in groups_of(part.values, norm):
                        mean, variance = by_hand(group, mean, variance)
            # the same formula in another order of summation
            near = (
                {"rtol": 1e-12, "atol": 1e-14}
                if problem.dtype == torch.float64
                else {"rtol": 1e-5, "atol": 1e-6}
            )
            torch.testing.assert_close(norm.running_mean, mean, **near)
            torch.testing.assert_close(norm.running_var, variance, **near)
            groups = sum(len(groups_of(part.values, norm)) for part in inputs[:passes])
            tracked += groups if norm.training else 0
            assert int(norm.num_batches_tracked) == tracked


def groups_of(inputs: Tensor, norm: torch.nn.Module) -> list[Tensor]:
    """The rows that are normalised together: all, or groups of a size, of which the last takes a single row that is left over."""
    size = norm.groups.size if hasattr(norm, "groups") else len(inputs)
    groups = list(inputs.split(size))
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2:] = [torch.cat(groups[-2:])]
    return groups


@dataclass(frozen=True)
class Normalised:
    """What batch norm was given, and the weights of the layer before it at that time."""

    values: Tensor
    weights: dict[str, Tensor]


@contextmanager
def normalised(layer: torch.nn.Module, norm: torch.nn.Module) -> Iterator[list[Normalised]]:
    """Record what goes from the layer into batch norm."""
    calls: list[Normalised] = []

    def note(module: torch.nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
        weights = {name: value.clone() for name, value in layer.state_dict().items()}
        calls.append(
            Normalised(
                inputs[0].detach().to(torch.promote_types(inputs[0].dtype, torch.float32), copy=True), weights
            )
        )

    hook = norm.register_forward_hook(note)
    try:
        yield calls
    finally:
        hook.remove()


def by_hand(inputs: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Ioffe & Szegedy 2015, with torch's momentum of 0.1 and unbiased variance, over all but the channels."""
    channels = inputs.transpose(0, 1).flatten(1)
    return 0.9 * mean + 0.1 * channels.mean(dim=1), 0.9 * variance + 0.1 * channels.var(dim=1, unbiased=True)


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
