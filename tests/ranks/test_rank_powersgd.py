"""PowerSGD: what it leaves out is not lost, whatever comes in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.powersgd import Compression, PowerSGD
from tests.laws import problems
from tests.laws.problems import relative_error
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.ranks.test_rank_compression import THIN, Window, begun, windows
from tests.ranks.test_rank_resume import Place, begun_or_gone_on_with, in_one_place

UNLIKE = (8, 8, 3, 8, 6)


def test_what_was_sent_and_what_was_left_out_are_the_true_gradients(two: Ranks) -> None:
    """Also where windows have other weights."""
    sent_by_rank = two.run(sent_and_left_out)
    step = begun((), "alone", learning_rate=0.0)
    true: dict[str, Tensor] = {}
    for window in windows(UNLIKE):
        step(Batch.of(window))
        true = {name: each + true.get(name, 0.0) for name, each in problems.gradients(step).items()}
    sent = sent_by_rank[0][0]
    found = {name: sent[name] + sum(left_out[name] for _, left_out in sent_by_rank) for name in sent}
    assert relative_error(found, true) <= 1e-12
    assert relative_error(sent, true) > 0.01  # something was left out


def sent_and_left_out() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All gradients of weights that stay, and what this rank has not sent of them."""
    step = begun((THIN,), "ddp", learning_rate=0.0)
    sent: dict[str, Tensor] = {}
    for window in windows(UNLIKE):
        step(part_of(step, window))
        sent = {name: each + sent.get(name, 0.0) for name, each in problems.gradients(step).items()}
    assert isinstance(step.exchange, Compression)
    return sent, step.exchange.left_out


def test_a_weight_that_some_windows_do_not_reach_gets_all_of_its_gradient(two: Ranks) -> None:
    """Also where the first compressed gradient of it was none, which leaves a product of zeros behind."""
    sent_by_rank = two.run(sent_to_a_branch)
    true = {"weight": torch.zeros(4, 5), "bias": torch.zeros(4)}
    for takes_branch, (inputs, towards) in zip(TAKES_BRANCH, branch_windows(), strict=True):
        if takes_branch:
            true["weight"] += towards.T @ inputs / 4
            true["bias"] += towards.mean(0)
    found = {
        name: sent + sent_by_rank[1][1][name] + sent_by_rank[0][1][name]
        for name, sent in sent_by_rank[0][0].items()
    }
    assert relative_error(found, true) <= 1e-6
    assert sent_by_rank[0][0]["weight"].norm() > 0.5 * true["weight"].norm()


TAKES_BRANCH = (False, False, True, False, True, True)


class Branch(nn.Module):
    """A weight that the loss reaches where the inputs say so."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.always(inputs[:, 1:])
        return found + self.sometimes(inputs[:, 1:]) if inputs[0, 0] else found


def branch_windows() -> list[Window]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(4, 5, generator=generator), torch.randn(4, 4, generator=generator)) for _ in TAKES_BRANCH
    ]


def sent_to_a_branch() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """All that a weight got while it stayed, and what this rank has not sent of it."""
    model = Branch()
    thin = PowerSGD(rank=1, start=0, min_compression_rate=0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def loss(outputs: Tensor, data: Any) -> Tensor:
        return (outputs * data[1]).sum(1)

    step = Step(model, optimizer, loss, [thin], strategy=STRATEGIES["ddp"]())
    sent = {"weight": torch.zeros(4, 5), "bias": torch.zeros(4)}
    for takes_branch, (inputs, towards) in zip(TAKES_BRANCH, branch_windows(), strict=True):
        flagged = torch.cat([torch.full((4, 1), float(takes_branch)), inputs], 1)
        assert step(part_of(step, (flagged, towards))).applied
        for name, parameter in model.sometimes.named_parameters():
            if parameter.grad is not None:
                sent[name] += parameter.grad
    assert isinstance(step.exchange, Compression)
    left_out = step.exchange.left_out
    return sent, {name: left_out[f"sometimes.{name}"] for name in sent}


def test_two_columns_are_exact_for_gradients_of_one(two: Ranks) -> None:
    """Torch's own hook is up to 0.99 away: in both types from the third window on."""
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        for found in two.run(gradients_of_one_column, dtype):
            for number, (sent, true) in enumerate(found):
                assert relative_error({"": sent}, {"": true}) <= tolerance, f"{dtype}, window {number}"


def gradients_of_one_column(dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """What each window's gradient came to, and what it is: a column times a row, which share their directions on all ranks."""
    model = nn.Linear(6, 5, bias=False).to(dtype)

    def loss(outputs: Tensor, data: Any) -> Tensor:
        return (outputs * data[1]).sum(1)

    thin = PowerSGD(rank=2, start=0, min_compression_rate=0.01)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    step = Step(model, optimizer, loss, [thin], strategy=STRATEGIES["ddp"]())
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(8):
        row, column = (torch.randn(1, size, generator=generator, dtype=dtype) for size in (6, 5))
        assert step(part_of(step, (row.repeat(2, 1), torch.cat([column, 3 * column])))).applied
        found.append((problems.gradients(step)["weight"], 2 * column.T @ row))
    return found


def test_a_run_that_leaves_out_something_goes_on_bit_for_bit(two: Ranks, tmp_path: Path) -> None:
    in_one_place(tmp_path, (PowerSGD(rank=1, start=1, min_compression_rate=0.5),), Place("ddp", two))


@pytest.mark.slow
def test_what_was_left_out_is_shared_by_the_ranks_that_go_on(two: Ranks, four: Ranks, tmp_path: Path) -> None:
    """And dropped by one that goes on alone."""
    techniques = (PowerSGD(rank=1, start=1, min_compression_rate=0.5),)
    Place("ddp", two).run(tmp_path, techniques, stop=3)
    before = two.run(left_out_in, tmp_path, techniques)
    after = four.run(left_out_in, tmp_path, techniques)
    for name in before[0]:
        total = before[0][name] + before[1][name]
        for each in after:
            assert torch.allclose(each[name], total / 4, rtol=1e-12, atol=0)
    assert any(before[0][name].any() for name in before[0])
    alone = Place("alone", None).run(tmp_path, techniques, stop=4)
    assert len(alone["losses"]) == 4


def left_out_in(folder: Path, techniques: tuple[Technique, ...]) -> dict[str, Tensor]:
    """What a rank that goes on with a run has to send yet."""
    exchange = begun_or_gone_on_with(folder, techniques, "ddp").step.exchange
    assert isinstance(exchange, Compression)
    return exchange.left_out


class Odd(nn.Module):
    """A weight without a dimension, one whose dimensions lie in memory in another order, and one that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
        self.filters = nn.Conv2d(3, 4, 3).double().to(memory_format=torch.channels_last)
        self.unused = nn.Linear(5, 5).double()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.filters(images).mean((2, 3)) * self.scale
        return found


@pytest.mark.parametrize("rank", [1, 64])
def test_weights_of_any_shape_and_layout_are_compressed(two: Ranks, rank: int) -> None:
    """With as many columns as there are exactly, with one but for what is left out."""
    alone, _ = gradients_of_odd("alone", rank)
    (first, left_out), (second, left_out_too) = two.run(gradients_of_odd, "ddp", rank)
    assert relative_error(first, second) == 0
    assert (relative_error(first, alone) <= 1e-10) == (rank == 64)
    assert relative_error({"scale": first["scale"]}, {"scale": alone["scale"]}) <= 1e-10
    whole = {name: sent + left_out[name] + left_out_too[name] for name, sent in first.items()}
    assert relative_error(whole, alone) <= 1e-10


@pytest.mark.filterwarnings("ignore:.* does nothing")
def gradients_of_odd(strategy: str, rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Of a window, and what this rank has not sent of them."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, images = Odd(), torch.randn(4, 3, 5, 5, dtype=torch.float64)
    made: Strategy = STRATEGIES[strategy]()
    compression = PowerSGD(rank=rank, start=0, min_compression_rate=0.01)
    step = Step(model, SGD(learning_rate=0.1), "cross_entropy", [compression], strategy=made)
    result = step(part_of(step, (images, torch.tensor([0, 1, 2, 3]))))
    assert result.applied
    left_out = step.exchange.left_out if isinstance(step.exchange, Compression) else {}
    return problems.gradients(step), left_out
