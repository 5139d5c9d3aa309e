from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.progress import Progress
from snugfit.core.technique import Seams
from snugfit.kit import averages
from snugfit.techniques.learning.ema import EMA, ema_, warm_decay
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_an_impossible_decay_is_refused(value: float) -> None:
    refuses(EMA, decay=value)


def test_an_average_moves_by_the_rest_of_the_decay() -> None:
    averages = [torch.tensor([1.0, 2.0]), torch.tensor(4.0)]
    ema_(averages, [torch.tensor([0.0, 4.0]), torch.tensor(4.0)], decay=0.75)
    assert [average.tolist() for average in averages] == [[0.75, 2.5], 4.0]


def test_the_decay_warms_up_to_its_setting() -> None:
    decays = [warm_decay(0.9, updates) for updates in range(1, 200)]
    assert decays == sorted(decays)
    assert decays[0] == 2 / 11
    assert decays[-1] == 0.9


def averaged(model: nn.Module, decay: float = 0.5, warmup: bool = False) -> Seams:
    return EMA(decay=decay, warmup=warmup).seams(context(model))


def updated(seams: Seams, model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    assert seams.updated is not None
    seams.updated(model, Progress(updates=1))


def test_weights_are_swapped_in_and_given_back_bit_for_bit() -> None:
    model = nn.Linear(2, 1)
    seams = averaged(model)
    updated(seams, model, 1 / 3)
    raw = [parameter.detach().clone() for parameter in model.parameters()]
    assert seams.weights is not None
    with seams.weights(model):
        assert not any(torch.equal(*pair) for pair in zip(model.parameters(), raw, strict=True))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), raw, strict=True))


def test_weights_are_given_back_when_the_evaluation_fails() -> None:
    model = nn.Linear(2, 1)
    seams = averaged(model)
    updated(seams, model, 1.0)
    assert seams.weights is not None
    with pytest.raises(ZeroDivisionError), seams.weights(model):
        raise ZeroDivisionError
    assert set(model.weight.flatten().tolist()) == {1.0}


def test_weights_are_given_back_when_swapping_in_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 1)
    seams = averaged(model)
    updated(seams, model, 1.0)
    whole, calls = averages.copy_, []

    def fails_once(tensors: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        calls.append(1)
        whole(tensors[:1], sources[:1])
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        whole(tensors, sources)

    monkeypatch.setattr(averages, "copy_", fails_once)
    assert seams.weights is not None
    with pytest.raises(torch.OutOfMemoryError), seams.weights(model):
        pass
    assert {value for p in model.parameters() for value in p.flatten().tolist()} == {1.0}


def test_averages_of_half_precision_weights_are_kept_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    seams = averaged(model, decay=0.999)
    updated(seams, model, 1.0)
    before = next(iter(state_of(seams).values())).clone()
    updated(seams, model, 1.0)
    after = next(iter(state_of(seams).values()))
    assert after.dtype == torch.float32
    assert not torch.equal(before, after), "a step of a thousandth is lost in bf16"
    assert seams.weights is not None
    with seams.weights(model):
        assert model.weight.dtype == torch.bfloat16


def test_buffers_are_those_of_the_model() -> None:
    model = nn.BatchNorm1d(2)
    seams = averaged(model)
    model.running_mean.fill_(7.0)
    assert seams.weights is not None
    with seams.weights(model):
        assert model.running_mean.tolist() == [7.0, 7.0]


def test_the_state_is_the_average_by_name() -> None:
    model = nn.Linear(2, 1)
    seams = averaged(model)
    updated(seams, model, 3.0)
    other = averaged(nn.Linear(2, 1))
    assert seams.state is not None and other.state is not None
    other.state.load_state_dict(seams.state.state_dict())
    assert list(state_of(other)) == ["weight", "bias"]
    assert all(torch.equal(average, state_of(seams)[name]) for name, average in state_of(other).items())


def state_of(seams: Seams) -> dict[str, torch.Tensor]:
    assert seams.state is not None
    averages: dict[str, torch.Tensor] = seams.state.state_dict()["averages"]
    return averages
