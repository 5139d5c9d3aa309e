from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.tree import leaves
from snugfit.kit.averages import Averages
from snugfit.step.step import Step
from snugfit.techniques import find

BATCH = (torch.linspace(-1, 1, 32).reshape(4, 8), torch.tensor([0, 1, 0, 1]))
AVERAGING: dict[str, dict[str, Any]] = {"ema": {"decay": 0.5}, "swa": {"start": 2}, "lookahead": {"every": 2}}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def adapted(name: str) -> Step:
    techniques = [find("lora")(rank=1, head=("1",)), find(name)(**AVERAGING[name])]
    return Step(model(), find("sgd")(learning_rate=0.5), techniques=techniques, total_updates=6)


def with_freezing(name: str, freezing: Any) -> Step:
    techniques = [freezing, find(name)(**AVERAGING[name])]
    return Step(model(), find("sgd")(learning_rate=0.5), techniques=techniques, total_updates=6)


def test_what_does_not_train_is_not_copied() -> None:
    made = model()
    made[0].weight.requires_grad_(False)
    averages = Averages(made)
    assert list(averages.state_dict()) == ["0.bias", "1.weight", "1.bias"]
    assert [p is q for p, q in zip(averages.parameters(), list(made.parameters())[1:], strict=True)] == [
        True
    ] * 3


def test_what_was_frozen_when_the_state_was_saved_was_its_own_average() -> None:
    frozen, whole = model(), model()
    frozen[0].weight.requires_grad_(False)
    averages = Averages(whole)
    with torch.no_grad():
        whole[0].weight.fill_(3.0)
    averages.load_state_dict(Averages(frozen).state_dict())
    assert averages.state_dict()["0.weight"].unique().tolist() == [3.0]
    assert torch.equal(averages.state_dict()["1.weight"], frozen[1].weight)


@pytest.mark.parametrize("name", AVERAGING)
def test_beside_adapters_the_frozen_base_is_not_in_the_state(name: str) -> None:
    step = adapted(name)
    step(BATCH)
    trained = sum(p.numel() for p in step.parameters if p.requires_grad)
    state = step.seams.states[name].state_dict()
    assert (
        sum(tensor.numel() for tensor in leaves(state)) == trained < sum(p.numel() for p in step.parameters)
    )


@pytest.mark.parametrize("name", AVERAGING)
def test_beside_adapters_the_frozen_base_keeps_its_bits_and_what_trains_is_averaged(name: str) -> None:
    step = adapted(name)
    base = {n: p.detach().clone() for n, p in step.model.named_parameters() if not p.requires_grad}
    for _ in range(4):
        step(BATCH)
    raw = {n: p.detach().clone() for n, p in step.model.named_parameters()}
    with step.averaged():
        for n, parameter in step.model.named_parameters():
            same = torch.equal(parameter, raw[n])
            assert same == (n in base or name == "lookahead"), n
    assert all(torch.equal(raw[n], value) for n, value in base.items())


@pytest.mark.parametrize("name", AVERAGING)
def test_beside_adapters_a_resumed_run_goes_on_bit_for_bit(name: str) -> None:
    whole, first, second = (adapted(name) for _ in range(3))
    for update in range(5):
        if update == 3:
            second.load_state_dict(first.state_dict())
        whole(BATCH), (first if update < 3 else second)(BATCH)
    with whole.averaged(), second.averaged():
        assert all(torch.equal(*pair) for pair in zip(whole.parameters, second.parameters, strict=True))


@pytest.mark.parametrize("name", ["ema", "swa"])
@pytest.mark.parametrize(
    "freezing", [find("freeze")(patterns=("0",), updates=2), find("gradual_unfreeze")(every=2)], ids=str
)
def test_what_is_frozen_at_first_is_averaged_once_it_trains(name: str, freezing: Any) -> None:
    step = with_freezing(name, freezing)
    for _ in range(5):
        step(BATCH)
    raw = step.model[0].weight.detach().clone()
    with step.averaged():
        assert not torch.equal(step.model[0].weight, raw)
