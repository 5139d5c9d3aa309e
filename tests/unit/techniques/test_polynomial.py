from __future__ import annotations

import pytest
import torch

from snugfit.techniques.learning.polynomial import Polynomial
from tests.unit.techniques.settings import parameter, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(Polynomial, warmup=-1)
    refuses(Polynomial, power=0)
    refuses(Polynomial, power=float("inf"))
    refuses(Polynomial, minimum=-0.1)


@pytest.mark.parametrize("power", [0.9, 1.0, 3.0])
def test_without_warmup_and_minimum_it_is_torchs_polynomial(power: float) -> None:
    optimizer = torch.optim.SGD([parameter([0.0])], lr=1.0)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=9, power=power)
    for update in range(12):
        expected = scheduler.get_last_lr()[0]  # its recursion adds up rounding
        assert Polynomial(power=power).factor(update, total_updates=9) == pytest.approx(expected, abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_it_is_the_schedule_of_transformers_which_starts_warmup_one_update_late() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    for update in range(14):
        theirs = optimization._get_polynomial_decay_schedule_with_warmup_lr_lambda(
            update + 1 if update < 3 else update,
            num_warmup_steps=3,
            num_training_steps=12,
            lr_end=0.1,
            power=2.0,
            lr_init=1.0,
        )
        schedule = Polynomial(warmup=3, power=2.0, minimum=0.1)
        assert schedule.factor(update, total_updates=12) == pytest.approx(theirs, rel=1e-12)
