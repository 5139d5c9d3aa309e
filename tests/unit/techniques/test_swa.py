from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

from snugfit.core.progress import Progress
from snugfit.core.selection import check
from snugfit.core.technique import Seams
from snugfit.errors import PlanConflict, SettingError, SnugfitWarning
from snugfit.step.step import Step
from snugfit.system.nothing import NOTHING
from snugfit.techniques import find
from snugfit.techniques.learning.swa import SWA, average_
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_an_impossible_start_is_refused(value: float) -> None:
    refuses(SWA, start=value)


def test_an_impossible_distance_or_number_of_windows_is_refused() -> None:
    refuses(SWA, every=0)
    refuses(SWA, norm_windows=-1)


def test_a_start_as_a_fraction_needs_the_length_of_the_run() -> None:
    with pytest.raises(SettingError, match="^swa: needs the number of updates of the run"):
        SWA().seams(context())
    SWA(start=0).seams(context())
    SWA(start=7).seams(context())


def test_a_mean_takes_in_one_more() -> None:
    averages = [torch.tensor([1.0, 2.0]), torch.tensor(4.0)]
    average_(averages, [torch.tensor([4.0, 2.0]), torch.tensor(1.0)], members=2)
    assert [average.tolist() for average in averages] == [[2.0, 2.0], 3.0]


def run(seams: Seams, model: nn.Module, updates: int, first: int = 1) -> None:
    """After update n the weights are n."""
    assert seams.updated is not None
    for update in range(first, first + updates):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(update)
        seams.updated(model, Progress(updates=update))


def evaluated(seams: Seams, model: nn.Linear) -> float:
    assert seams.weights is not None
    with seams.weights(model):
        return float(model.weight.detach().flatten()[0])


@pytest.mark.parametrize(
    ("start", "every", "members"),
    [(4, 1, [4, 5, 6, 7, 8]), (4, 3, [4, 7]), (0, 3, [3, 6]), (0.5, 2, [4, 6, 8]), (8, 1, [8])],
)
def test_members_are_the_weights_at_the_start_and_at_every_so_many_updates_from_there(
    start: float, every: int, members: list[int]
) -> None:
    model = nn.Linear(2, 1)
    seams = SWA(start=start, every=every).seams(context(model, total_updates=8))
    run(seams, model, 8)
    assert evaluated(seams, model) == pytest.approx(sum(members) / len(members), rel=1e-6)


def test_before_the_start_the_weights_are_the_models_own_and_are_called_raw() -> None:
    model = nn.Linear(2, 1)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), "mse", [SWA(start=2)])
    batch = (torch.ones(4, 2), torch.zeros(4, 1))
    for name, waiting in (("raw", True), ("swa", False), ("swa", False)):
        step(batch)
        assert (step.seams.weights_name, step.seams.awaits_average) == (name, waiting)
    raw = model.weight.detach().clone()
    with step.averaged():
        assert not torch.equal(model.weight, raw)
    assert torch.equal(model.weight, raw)


def test_the_average_is_bit_for_bit_that_of_torchs_averaged_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    reference = AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
    seams = SWA(start=3, every=2).seams(context(model))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    assert seams.updated is not None and seams.weights is not None
    for update in range(1, 10):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().mean().backward()
        optimizer.step()
        seams.updated(model, Progress(updates=update))
        if update in (3, 5, 7, 9):
            reference.update_parameters(model)
    with seams.weights(model):
        pairs = zip(model.parameters(), reference.module.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_averages_of_half_precision_weights_are_kept_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    seams = SWA(start=0).seams(context(model))
    run(seams, model, 2, first=256)  # 257 and 256.5 do not exist in bf16
    assert seams.state is not None
    (average,) = seams.state.state_dict()["averages"].values()
    assert (average.dtype, float(average)) == (torch.float32, 256.0)
    run(seams, model, 1, first=258)
    assert float(average) == pytest.approx((256 + 256 + 258) / 3)


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def batches() -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 3, generator=source) + place, torch.arange(6) % 2) for place in range(4)]


def trained(**settings: Any) -> Step:
    model = normed()
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        techniques=[SWA(start=1, **settings)],
        total_updates=4,
    )
    for batch in batches():
        step(batch)
    return step


def windows() -> Iterator[Any]:
    yield from batches()


def test_batch_norm_is_scored_with_the_statistics_of_the_average_as_update_bn_finds_them() -> None:
    step, reference = trained(), trained()
    averaged = normed()
    with reference.averaged():
        averaged.load_state_dict(reference.model.state_dict())
    update_bn(batches(), averaged)
    step.settle(windows)
    with step.averaged():
        found = step.model.state_dict()
        assert all(torch.equal(found[name], value) for name, value in averaged.state_dict().items())


def test_settling_and_scoring_leave_the_model_and_the_random_state_as_they_were() -> None:
    step, other = trained(), trained()
    state = torch.random.get_rng_state()
    step.settle(windows)
    with step.averaged():
        pass
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, value in other.model.state_dict().items():
        assert torch.equal(step.model.state_dict()[name], value), name
    assert step.model[1].momentum == 0.1


def test_without_windows_batch_norm_keeps_the_statistics_of_the_raw_weights() -> None:
    step = trained(norm_windows=0)
    own = step.model[1].running_mean.clone()
    step.settle(windows)
    with step.averaged():
        assert torch.equal(step.model[1].running_mean, own)


def test_a_generator_of_windows_is_closed_when_enough_are_taken() -> None:
    closed = []

    def endless() -> Iterator[Any]:
        try:
            while True:
                yield from batches()
        finally:
            closed.append(True)

    trained(norm_windows=2).settle(endless)
    assert closed == [True]


def test_any_iterable_of_windows_will_do() -> None:
    step, other = trained(), trained()
    step.settle(windows), other.settle(batches)
    with step.averaged(), other.averaged():
        assert torch.equal(step.model[1].running_mean, other.model[1].running_mean)


def test_settling_before_the_start_runs_no_window() -> None:
    def never() -> Iterator[Any]:
        raise AssertionError
        yield

    model = normed()
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.5), techniques=[SWA(start=5)])
    step(batches()[0])
    step.settle(never)
    assert step.seams.weights_name == "raw"


def test_dropout_draws_the_same_at_each_settling() -> None:
    found = []
    for seed in (1, 2):
        model = nn.Sequential(normed(), nn.Dropout(0.5), nn.BatchNorm1d(2))
        step = Step(model, torch.optim.SGD(model.parameters(), lr=0.5), techniques=[SWA(start=1)])
        step(batches()[0])
        torch.manual_seed(seed)
        step.settle(windows)
        assert step.seams.states["swa"].state_dict()["norms"].keys() >= {"2.running_mean"}
        found.append(step.seams.states["swa"].state_dict()["norms"]["2.running_mean"])
    assert torch.equal(*found)


def test_a_model_left_in_eval_mode_is_settled_as_it_is_trained() -> None:
    step, other = trained(), trained()
    step.model.eval()
    for each in (step, other):
        each.settle(windows)
    with step.averaged(), other.averaged():
        assert torch.equal(step.model[1].running_mean, other.model[1].running_mean)


def test_with_a_moving_average_it_is_refused() -> None:
    with pytest.raises(PlanConflict, match="both give the weights, and a run has one. Remove one"):
        check([SWA(), find("ema")()])


def test_another_technique_has_no_average_to_wait_for() -> None:
    model = nn.Linear(2, 1)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), "mse", [find("ema")()])
    assert (step.seams.weights_name, step.seams.awaits_average) == ("ema", False)
    plain = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), "mse")
    assert (plain.seams.weights_name, plain.seams.awaits_average) == ("raw", False)
    assert plain.seams.weights(model) is NOTHING


def test_norms_that_are_frozen_stay_so_when_a_model_in_eval_mode_is_settled() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    freeze = find("freeze")(patterns=("1",))
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=[SWA(start=0), freeze])
    window = (torch.randn(6, 3), torch.tensor([0, 1] * 3))
    step(window)
    model.eval()  # as a loop of one's own does before it evaluates
    step.settle(lambda: [window])
    with step.averaged():
        assert model[1].running_mean.tolist() == [0.0] * 4


def test_a_start_behind_the_end_of_the_run_is_warned_of() -> None:
    with pytest.warns(
        SnugfitWarning, match=r"^swa\.start: comes to 9 updates, and the run has 8: nothing but"
    ):
        SWA(start=9).seams(context(total_updates=8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SWA(start=7).seams(context(total_updates=8))
        SWA(start=9).seams(context())
