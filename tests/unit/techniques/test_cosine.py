from __future__ import annotations

import pytest
import torch

from snugfit.techniques.learning.cosine import Cosine
from tests.unit.techniques.settings import parameter, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(Cosine, warmup=-1)
    refuses(Cosine, minimum=-0.1)
    refuses(Cosine, minimum=1.1)


@pytest.mark.parametrize("minimum", [0.0, 0.1])
def test_without_warmup_it_is_torchs_cosine_annealing(minimum: float) -> None:
    optimizer = torch.optim.SGD([parameter([0.0])], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9, eta_min=minimum)
    for update in range(10):
        # torch's recursion adds up rounding
        expected = scheduler.get_last_lr()[0]
        assert Cosine(minimum=minimum).factor(update, total_updates=9) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_it_is_the_schedule_of_transformers_which_starts_warmup_one_update_late() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    for update in range(12):
        theirs = optimization._get_cosine_schedule_with_warmup_lr_lambda(
            update + 1 if update < 3 else update, num_warmup_steps=3, num_training_steps=12, num_cycles=0.5
        )
        assert Cosine(warmup=3).factor(update, total_updates=12) == pytest.approx(theirs, abs=1e-12)


def test_it_ends_at_the_minimum_and_stays_there() -> None:
    assert Cosine(minimum=0.1).factor(5, total_updates=5) == pytest.approx(0.1)
    assert Cosine(minimum=0.1).factor(50, total_updates=5) == pytest.approx(0.1)
