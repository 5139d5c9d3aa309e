from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from snugfit.core.parameters import momentum_of
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.adafactor import Adafactor
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.chain import Chain
from snugfit.techniques.learning.constant import Constant
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.noam import Noam
from snugfit.techniques.learning.one_cycle import OneCycle
from snugfit.techniques.learning.per_group import PerGroup
from snugfit.techniques.learning.plateau import Plateau
from snugfit.techniques.learning.rmsprop import RMSprop
from snugfit.techniques.learning.sgd import SGD
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


@pytest.mark.parametrize(
    ("at", "places", "possible"),
    [((50, 0.1), "50, 10", 501), ((0.5, 10), "50, 10", 19), ((0.5, 50), "50, 50", 99)],
)
def test_numbers_and_fractions_that_do_not_rise_together_are_refused_before_training(
    at: tuple[float, ...], places: str, possible: int
) -> None:
    chain = Chain((*PAIR, Cosine()), at)
    with pytest.raises(SettingError, match=rf"^chain\.at: must rise, found .+ in 100 updates is {places}\."):
        chain.seams(context(total_updates=100))
    chain.seams(context(total_updates=possible))


@pytest.mark.parametrize("place", [0, 1])
def test_so_are_those_of_a_chain_in_a_chain_over_its_own_stretch(place: int) -> None:
    inner = Chain((*PAIR, Cosine()), at=(50, 0.5))
    parts = (inner, Linear()) if place == 0 else (Linear(), inner)
    for total, possible in ((400, True), (200, False)):
        if possible:
            Chain(parts, at=(0.5,)).seams(context(total_updates=total))
            continue
        with pytest.raises(SettingError, match=r"in 100 updates is 50, 50"):
            Chain(parts, at=(0.5,)).seams(context(total_updates=total))
        with pytest.raises(SettingError, match=r"in 100 updates is 50, 50"):
            PerGroup({"*": Chain(parts, at=(0.5,))}, Linear()).seams(context(total_updates=total))


def test_a_run_that_is_cut_short_is_warned_of_parts_that_never_begin() -> None:
    chain = Chain((Constant(), Linear(), Cosine()), at=(500, 0.8))
    with pytest.warns(UserWarning, match=r"chain\.at: comes to 500 updates, and the run has 2: the part"):
        seams = chain.seams(context(total_updates=2))
    assert seams.schedule is not None
    assert [seams.schedule(update, {}).factor for update in range(2)] == [1.0, 1.0]


@pytest.mark.parametrize("optimizer", [RMSprop(), Adafactor()], ids=str)
def test_a_momentum_that_is_moved_later_is_asked_for_before_training(optimizer: Technique) -> None:
    chain = Chain((Constant(), OneCycle()), at=(4,))
    for schedule in (chain, Chain((Linear(), chain), at=(2,)), PerGroup({"*bias": chain}, Constant())):
        with pytest.raises(SettingError, match=r"^schedule: moves the momentum, and the optimizer has"):
            Step(nn.Linear(2, 2), optimizer, techniques=[schedule], total_updates=8)


@pytest.mark.parametrize(
    "optimizer", [SGD(momentum=0.3), AdamW(betas=(0.3, 0.9)), RMSprop(momentum=0.3)], ids=str
)
def test_the_momentum_is_the_optimizers_own_where_no_part_moves_it(optimizer: Technique) -> None:
    """So it is a function of the number of updates: a resumed run and one that went back have the same."""
    cycle = OneCycle(momentum=(0.5, 0.8))
    chain = Chain((Constant(), cycle, Constant()), at=(2, 5))
    step = Step(nn.Linear(2, 2), optimizer, techniques=[chain], total_updates=7)
    start = copy.deepcopy(step.state_dict())
    expected = [0.3, 0.3, *(cycle.rate(update, 3).momentum for update in range(3)), 0.3, 0.3]
    for _ in range(2):
        found = []
        for _ in range(7):
            assert step((torch.ones(2, 2), torch.tensor([0, 1]))).applied
            found.append(momentum_of(step.optimizer.param_groups[0]))
        assert found == expected
        step.load_state_dict(start)


@pytest.mark.parametrize("parts", [(Linear(), SGD()), (Linear(), Plateau()), ("linear", "cosine"), Linear()])
def test_what_is_no_schedule_of_updates_is_refused_as_a_part(parts: Any) -> None:
    with pytest.raises(
        SettingError, match=r"^chain\.parts: must be two schedules or more that go by updates alone"
    ):
        Chain(parts=parts, at=(3,))


def test_where_parts_begin_is_a_list() -> None:
    with pytest.raises(SettingError, match=r"^chain\.at: must be a list"):
        Chain(parts=(Linear(), Cosine()), at=3)  # type: ignore[arg-type]
