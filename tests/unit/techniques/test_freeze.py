from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.run.from_python import train
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.freeze import Freeze, freeze_
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import refuses

BATCH = (torch.linspace(-1, 1, 24).reshape(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.fc = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.body(inputs).relu())
        return logits


def moved(step: Step, before: nn.Module) -> set[str]:
    """Names of what is not as it was, statistics included."""
    old = before.state_dict()
    return {name for name, value in step.model.state_dict().items() if not torch.equal(value, old[name])}


def test_impossible_settings_are_refused() -> None:
    refuses(Freeze, updates=0)
    with pytest.raises(SettingError, match=r"^freeze\.all_but: must be left out where patterns are given"):
        Freeze(patterns=("body",), all_but=("fc",))


@pytest.mark.parametrize("settings", [Freeze(), Freeze(all_but=("fc",)), Freeze(patterns=("body",))], ids=str)
def test_only_the_head_moves_with_decay_and_statistics(settings: Freeze) -> None:
    step = Step(Net(), AdamW(learning_rate=0.1, weight_decay=0.5), techniques=[settings])
    before = copy.deepcopy(step.model)
    for _ in range(3):
        step(BATCH)
    assert moved(step, before) == {"fc.weight", "fc.bias"}
    assert {name for name, p in step.model.named_parameters() if p.grad is not None} == {
        "fc.weight",
        "fc.bias",
    }


def test_the_statistics_move_if_that_is_asked_for() -> None:
    step = Step(Net(), SGD(), techniques=[Freeze(norms=False)])
    before = copy.deepcopy(step.model)
    step(BATCH)
    assert {"body.1.running_mean", "body.1.running_var"} < moved(step, before)


def test_what_is_frozen_at_first_trains_afterwards() -> None:
    step = Step(Net(), SGD(momentum=0.9), techniques=[Freeze(patterns=("body",), updates=2)])
    before = copy.deepcopy(step.model)
    for _ in range(2):
        step(BATCH)
    assert not any(name.startswith("body") for name in moved(step, before))
    step(BATCH)
    assert moved(step, before) == set(before.state_dict())
    assert all(parameter.requires_grad for parameter in step.model.parameters())


def test_weights_frozen_anew_are_not_moved_by_their_momentum() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    Step(net, optimizer)(BATCH)
    step = Step(net, optimizer, techniques=[Freeze(patterns=("fc",))])
    before = copy.deepcopy(net)
    step(BATCH)
    assert not any(name.startswith("fc") for name in moved(step, before))


def test_a_window_that_makes_no_update_does_not_count() -> None:
    step = Step(Net(), SGD(), techniques=[Freeze(patterns=("body",), updates=1)])
    before = copy.deepcopy(step.model)
    step((BATCH[0] * float("nan"), BATCH[1]))
    step(BATCH)
    assert not any(name.startswith("body") for name in moved(step, before))


def test_what_the_caller_froze_stays_frozen() -> None:
    net = Net()
    net.body[0].weight.requires_grad_(False)
    step = Step(net, SGD(), techniques=[Freeze(patterns=("body",), updates=1)])
    before = copy.deepcopy(net)
    for _ in range(3):
        step(BATCH)
    assert "body.0.weight" not in moved(step, before)


def test_an_evaluation_in_between_leaves_the_statistics_frozen() -> None:
    step = Step(Net(), SGD(), techniques=[Freeze()])
    before = copy.deepcopy(step.model)
    step(BATCH)
    step.model.eval()  # as somebody's own evaluation does, who switches all of it back
    step.model.train()
    step(BATCH)
    assert moved(step, before) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Freeze(patterns=("bdoy",)), r"^freeze\.patterns: 'bdoy' matches no module or parameter.*'body'\?"),
        (Freeze(all_but=("fcc",)), r"^freeze\.all_but: 'fcc' matches no .*'fc'\?"),
        (Freeze(patterns=("*",)), r"^freeze\.patterns: leaves no parameter to train"),
    ],
    ids=str,
)
def test_patterns_that_cannot_be_meant_are_refused(settings: Freeze, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Step(Net(), SGD(), techniques=[settings])


def test_freezing_by_hand_says_what_it_froze() -> None:
    net = Net()
    assert freeze_(net) == ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
    assert not net.body[1].training and net.fc.weight.requires_grad


def test_statistics_that_the_user_holds_once_the_layer_is_thawed_stay() -> None:
    step = Step(Net(), SGD(), techniques=[Freeze(patterns=("body",), updates=1)])
    norm = step.model.body[1]
    for _ in range(2):
        step(BATCH)
    assert norm.training
    norm.eval()
    before = norm.running_mean.clone()
    step(BATCH)
    assert torch.equal(norm.running_mean, before) and not norm.training


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_statistics_that_nobody_holds_move_again_also_in_a_resumed_run(stop: int) -> None:
    step, resumed = (Step(Net(), SGD(), techniques=[Freeze(patterns=("body",), updates=2)]) for _ in range(2))
    for update in range(4):
        if update == stop:
            resumed.load_state_dict(copy.deepcopy(step.state_dict()))
        if update >= stop:
            resumed(BATCH)
        step(BATCH)
    assert step.model.body[1].training and step.model.body[1].running_mean.any()
    assert torch.equal(step.model.body[1].running_mean, resumed.model.body[1].running_mean)


@pytest.mark.parametrize(
    ("technique", "setting"),
    [(Freeze(patterns=("0",), updates=9), "freeze.updates"), (find("gradual_unfreeze")(every=9), "every")],
)
def test_an_end_of_freezing_beyond_the_run_is_told_among_the_runs_events(
    technique: Technique, setting: str, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    data = [(torch.randn(2), torch.tensor(0)) for _ in range(8)]
    events: list[dict[str, Any]] = []
    train(
        model,
        data,
        updates=2,
        global_batch=4,
        techniques=[technique],
        track=False,
        output=tmp_path,
        display=events.append,
    )
    warned = [event["message"] for event in events if event["event"] == "warning"]
    assert any(setting in message and "the run has 2" in message for message in warned)
