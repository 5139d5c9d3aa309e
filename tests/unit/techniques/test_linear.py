from __future__ import annotations

import pytest
import torch

from snugfit.techniques.learning.linear import Linear
from tests.unit.techniques.settings import parameter, refuses


def test_an_impossible_warmup_is_refused() -> None:
    refuses(Linear, warmup=-1)


@pytest.mark.parametrize("warmup", [0, 3, 0.25])
def test_it_is_the_schedule_of_transformers_which_starts_warmup_one_update_late(warmup: float) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    length = 3 if warmup else 0
    for update in range(12):
        theirs = optimization._get_linear_schedule_with_warmup_lr_lambda(
            update + 1 if update < length else update, num_warmup_steps=length, num_training_steps=12
        )
        assert Linear(warmup=warmup).factor(update, total_updates=12) == pytest.approx(theirs, rel=1e-12)


def test_without_warmup_it_is_torchs_linear() -> None:
    optimizer = torch.optim.SGD([parameter([0.0])], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=7)
    for update in range(9):
        assert Linear().factor(update, total_updates=7) == pytest.approx(
            scheduler.get_last_lr()[0], abs=1e-12
        )
        optimizer.step()
        scheduler.step()


def test_the_last_update_still_moves_and_the_rate_is_zero_after_it() -> None:
    assert Linear().factor(3, total_updates=4) == 0.25
    assert Linear().factor(4, total_updates=4) == Linear().factor(40, total_updates=4) == 0.0
