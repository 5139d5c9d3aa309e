"""Groups of m-SAM are of the whole window, whichever ranks its rows lie on, and every rank computes a part of each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.step.gather import part_of_rank
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.techniques.learning.sam import SAM
from tests.laws import problems
from tests.laws.problems import relative_error
from tests.ranks.law import STRATEGIES, agree_on_ranks, part_of
from tests.ranks.pool import Ranks

UNEVEN = (7, 1, 5)
"""Of the second window rank 1 has no row; of the first and the third a group lies on both."""
ROWS = 9


def grouped(m: int, *beside: str, adaptive: bool = False) -> tuple[Technique, ...]:
    return (SAM(rho=0.2, m=m, adaptive=adaptive), *problems.fitted(problems.find_examples(*beside)))


@pytest.mark.parametrize("m", [1, 3, 100])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_groups_that_do_not_divide_a_rank_s_part_give_the_update_of_one_rank(
    two: Ranks, m: int, strategy: str
) -> None:
    agree_on_ranks(two, problems.main, grouped(m), strategy, rows=UNEVEN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "beside",
    [
        "hard_examples",
        "gradient_cache",
        "packing",
        "hidden_mixup",
        "fp16",
        "clip_norm",
        "lora",
        "bf16_gradients",
    ],
)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_groups_beside_another_technique_give_the_update_of_one_rank(
    two: Ranks, beside: str, strategy: str
) -> None:
    agree_on_ranks(two, problems.main, grouped(4, beside, adaptive=True), strategy, rows=UNEVEN)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_bucket_view", "fsdp", "fsdp-hybrid", "fsdp-offload"])
def test_groups_on_four_ranks_give_the_update_of_one(four: Ranks, strategy: str) -> None:
    agree_on_ranks(four, problems.main, grouped(3), strategy, rows=(9, 2, 5))


def test_every_rank_computes_a_part_of_each_group_and_batch_norm_sees_no_row_alone(two: Ranks) -> None:
    """Each group twice: at the weights, and at its worst point."""
    first, second = two.run(rows_seen)
    assert first["rows"] == [2, 2, 2, 2] and second["rows"] == [2, 2, 3, 3]
    assert relative_error(first["weights"], second["weights"]) == 0.0


def rows_seen() -> dict[str, Any]:
    """Rows that this rank's batch norm sees in each pass over nine rows in groups of four: the row left over is in the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        techniques=[SAM(m=4)],
        strategy=STRATEGIES["ddp"](),
    )
    rows: list[int] = []
    model[1].register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    generator = torch.Generator().manual_seed(1)
    window = (torch.randn(ROWS, 4, generator=generator), torch.randint(0, 2, (ROWS,), generator=generator))
    assert step(part_of(step, window)).applied
    return {"rows": rows, "weights": problems.weights(step)}


class Rank(Strategy):
    """One of some ranks, of which nothing is asked."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 14])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_parts_of_a_group_are_all_of_its_rows_once_and_cut_no_mixed_examples(
    rows: int, group: int, paired: bool, ranks: int
) -> None:
    window = Batch((torch.arange(rows), torch.zeros(rows)), rows, group=group)
    parts = [part_of_rank(Rank(rank, ranks), window, paired) for rank in range(ranks)]
    own = [part.data[0][: part.share.rows].tolist() for part in parts if part.share is not None]
    assert list(itertools.chain(*own)) == list(range(rows))
    assert {part.share and part.share.counts for part in parts} == {tuple(map(len, own))}
    assert all(part and part[0] % group == 0 for part in own if part)
    if paired and rows > 1:
        assert all(part.rows > 1 for part in parts)
