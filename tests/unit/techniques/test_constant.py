from __future__ import annotations

import pytest

from snugfit.core.technique import Rate
from snugfit.techniques.learning.constant import Constant
from tests.unit.techniques.settings import context, refuses


def test_an_impossible_warmup_is_refused() -> None:
    refuses(Constant, warmup=-1)


def test_it_does_not_need_the_length_of_the_run_unless_warmup_is_a_part_of_it() -> None:
    schedule = Constant(warmup=2).seams(context(total_updates=None)).schedule
    assert schedule is not None
    assert [schedule(update, {}).factor for update in (0, 1, 2, 1000)] == [0.5, 1.0, 1.0, 1.0]
    plain = Constant().seams(context(total_updates=None)).schedule
    assert plain is not None and plain(0, {}) == plain(99, {}) == Rate(1.0)


def test_after_warmup_it_is_the_schedule_of_transformers_one_update_earlier() -> None:
    optimization = pytest.importorskip("transformers.optimization")
    factor = Constant(warmup=3)
    theirs = optimization._get_constant_schedule_with_warmup_lr_lambda
    for update in range(10):
        assert factor.factor(update, total_updates=10) == theirs(update + 1, num_warmup_steps=3)
