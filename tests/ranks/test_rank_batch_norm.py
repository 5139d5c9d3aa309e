"""Batch norm sees the rows of its own rank, as it sees those of a micro-batch; statistics are averaged over ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from snugfit.core.technique import Technique
from tests.laws import problems
from tests.laws.problems import make_step, relative_error
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

ROWS = 8


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_that_take_a_micro_batch_each_give_its_update_and_the_mean_of_their_statistics(
    two: Ranks, strategy: str
) -> None:
    (window,) = problems.normed(()).windows(rows=(ROWS,))
    step = make_step(problems.normed(()), (), micro_batch=ROWS // 2)
    step(window)

    for found in two.run(trained, strategy):
        assert relative_error(found["weights"], problems.weights(step)) <= 1e-10
        for name, value in found["buffers"].items():
            halves = [statistics(window, slice(0, 4))[name], statistics(window, slice(4, 8))[name]]
            torch.testing.assert_close(value, sum(halves) / 2)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_statistics_that_are_estimated_for_an_average_are_those_of_all_ranks(
    two: Ranks, strategy: str
) -> None:
    """Of the second window the second rank has less than the first: under fsdp they make as many passes."""
    (swa,) = problems.find_examples("swa")
    model = problems.normed(()).model()
    first, second = two.run(settled, swa, strategy)

    assert first and first == second
    assert first != [each.flatten().tolist() for each in floating(model).values()]


def settled(swa: Technique, strategy: str) -> list[list[float]]:
    """What batch norm has where the average is scored."""
    problem = problems.normed((swa,))
    step = make_step(problem, (swa,), micro_batch=2, strategy=STRATEGIES[strategy]())
    windows = [part_of(step, window) for window in problem.windows(rows=(8, 7, 6))]
    for window in windows:
        step(window)
    step.settle(lambda: iter(windows))
    with step.averaged():
        return [each.flatten().tolist() for each in floating(step.model).values()]


def trained(strategy: str) -> dict[str, dict[str, Tensor]]:
    problem = problems.normed(())
    (window,) = problem.windows(rows=(ROWS,))
    step = make_step(problem, (), micro_batch=ROWS, strategy=STRATEGIES[strategy]())
    step(part_of(step, window))
    return {"weights": problems.weights(step), "buffers": floating(step.model)}


def statistics(window: dict[str, Any], rows: slice) -> dict[str, Tensor]:
    """What batch norm keeps of these rows, by a forward of torch's own."""
    model = problems.normed(()).model()
    model(window["numbers"][rows])
    return floating(model)


def floating(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in model.named_buffers() if each.is_floating_point()}
