from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from snugfit.core.schedule import Schedule
from snugfit.errors import SettingError
from snugfit.techniques.learning.chain import Chain
from snugfit.techniques.learning.constant import Constant
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.noam import Noam
from snugfit.techniques.learning.one_cycle import OneCycle
from tests.unit.techniques.settings import context, parameter

PAIR: tuple[Schedule, ...] = (Constant(), Linear())


@pytest.mark.parametrize("at", [(), (3, 5), (0,), (1.5,), (-0.1,), (float("nan"),)])
def test_an_impossible_beginning_of_the_second_part_is_refused(at: tuple[float, ...]) -> None:
    with pytest.raises(SettingError, match=r"^chain\.at: must be 1 rising, where parts 2 to 2 begin"):
        Chain(PAIR, at)


@pytest.mark.parametrize("at", [(5, 3), (5, 5), (0.5, 0.2)])
def test_beginnings_that_do_not_rise_are_refused(at: tuple[float, ...]) -> None:
    with pytest.raises(SettingError, match=r"^chain\.at: must be 2 rising"):
        Chain((*PAIR, Cosine()), at)


def test_one_part_is_no_chain() -> None:
    with pytest.raises(SettingError, match=r"^chain\.parts: must be two schedules or more"):
        Chain((Linear(),), ())


def test_it_is_torchs_sequential_of_a_warmup_and_two_cosines() -> None:
    optimizer = torch.optim.SGD([parameter([0.0])], lr=1.0)
    parts: list[Any] = [
        lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=3),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=8, eta_min=0.2),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=6),
    ]
    scheduler = lr_scheduler.SequentialLR(optimizer, parts, milestones=[4, 12])
    chain = Chain((Constant(warmup=4), Cosine(minimum=0.2), Cosine()), at=(4, 12))
    for update in range(18):
        assert chain.factor(update, total_updates=18) == pytest.approx(
            scheduler.get_last_lr()[0], abs=1e-12
        ), f"update {update}"
        optimizer.step()
        scheduler.step()


def test_each_part_sees_its_own_stretch_as_a_whole_run() -> None:
    chain = Chain((Linear(warmup=0.5), Linear()), at=(0.4,))
    factors = [chain.factor(update, total_updates=10) for update in range(10)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 0.5, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


def test_updates_and_fractions_may_stand_together() -> None:
    chain = Chain((Constant(warmup=2), Constant(), Linear()), at=(2, 0.8))
    assert [chain.factor(update, 10) for update in range(10)] == [0.5, *[1.0] * 8, 0.5]


def test_a_part_moves_the_momentum_only_while_it_runs() -> None:
    cycle = OneCycle(momentum=(0.5, 0.8))
    chain = Chain((cycle, Constant()), at=(5,))
    assert [chain.rate(update, 8) for update in range(5)] == [cycle.rate(update, 5) for update in range(5)]
    assert chain.rate(6, 8).momentum is None


def test_a_chain_may_be_a_part_of_another() -> None:
    inner = Chain((Linear(), Constant()), at=(2,))
    assert [Chain((inner, Linear()), at=(4,)).factor(n, 6) for n in range(6)] == [
        1.0,
        0.5,
        1.0,
        1.0,
        1.0,
        0.5,
    ]


def test_the_length_of_the_run_is_asked_for_only_where_it_matters() -> None:
    assert Chain((Linear(), Constant()), at=(4,)).seams(context()).schedule is not None
    for chain in (Chain((Constant(), Linear()), at=(4,)), Chain((Linear(), Constant()), at=(0.5,))):
        with pytest.raises(SettingError, match="chain: needs the number of updates of the run"):
            chain.seams(context())


def test_it_sets_the_scale_if_a_part_does() -> None:
    assert Chain((Noam(), Linear()), at=(4,)).sets_scale()
    assert not Chain(PAIR, at=(4,)).sets_scale()
