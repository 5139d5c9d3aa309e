from __future__ import annotations

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.core.selection import check
from snugfit.core.technique import Moment, Technique
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.progressive_freeze import ProgressiveFreeze
from tests.unit.techniques.settings import context, refuses
from tests.unit.techniques.test_gradual_unfreeze import BATCH, Net


@pytest.mark.parametrize(
    ("setting", "value"), [("start", 1.0), ("start", -0.1), ("most", 0.0), ("most", 1.1)]
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(ProgressiveFreeze, **{setting: value})


def trained(*techniques: Technique, updates: int = 8) -> sf.Step:
    return sf.Step(
        Net(),
        sf.AdamW(learning_rate=0.1, weight_decay=0.5),
        "cross_entropy",
        techniques,
        total_updates=updates,
    )


def test_blocks_freeze_from_the_inputs_up_with_their_statistics_and_the_head_never() -> None:
    step = trained(ProgressiveFreeze(start=0.25))
    blocks = []
    for _ in range(8):
        before = {name: value.clone() for name, value in step.model.state_dict().items()}
        step(BATCH)
        after = step.model.state_dict()
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        blocks.append({name.partition(".")[0] if name[0] != "l" else name[:8] for name in moved})
        statistics = {name[:8] for name in moved if "running" in name}
        assert statistics == {name for name in blocks[-1] if name.startswith("layers")}
    every = {"scale", "layers.0", "layers.1", "head"}
    # two blocks before the head: one is frozen from half of the last three quarters on, the other at the end
    assert blocks == [every] * 5 + [every - {"scale", "layers.0"}] * 3


def test_a_frozen_block_has_no_gradient_and_keeps_no_memory_for_one() -> None:
    step = trained(ProgressiveFreeze(start=0.25), find("ema")(decay=0.5))
    for _ in range(5):
        step(BATCH)
    assert all(p.grad is None or p.requires_grad for p in step.parameters)
    step(BATCH)
    frozen = [step.model.scale, *step.model.layers[0].parameters()]
    assert all(not p.requires_grad and p.grad is None for p in frozen)
    before = [p.detach().clone() for p in frozen]
    state = {p: step.optimizer.state[p]["exp_avg"].clone() for p in frozen}
    step(BATCH)
    assert all(torch.equal(p, old) for p, old in zip(frozen, before, strict=True))
    assert all(torch.equal(step.optimizer.state[p]["exp_avg"], old) for p, old in state.items())
    with step.seams.weights(step.model):  # the average goes on towards what stays
        assert not torch.equal(step.model.scale, before[0])


def test_backward_ends_at_the_first_block_that_trains() -> None:
    step, calls = trained(ProgressiveFreeze(start=0.25)), list[str]()
    step.model.layers[0].register_full_backward_hook(lambda *_: calls.append("first"))
    step.model.layers[1].register_full_backward_hook(lambda *_: calls.append("second"))
    counts = []
    for _ in range(8):
        del calls[:]
        step(BATCH)
        counts.append(("first" in calls, "second" in calls))
    assert counts == [(True, True)] * 5 + [(False, True)] * 3


def test_part_of_the_blocks_may_be_the_most() -> None:
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    begin = ProgressiveFreeze(start=0.0, most=0.5).seams(context(net, total_updates=100)).begin
    assert begin is not None
    counts = []
    for updates in (0, 24, 25, 50, 75, 99):
        begin(net, Moment(updates, updates, seed=0))
        counts.append(sum(not layer.weight.requires_grad for layer in net))
    assert counts == [0, 0, 1, 2, 3, 3]


def test_what_was_frozen_before_stays_so() -> None:
    net = Net()
    net.layers[1].requires_grad_(False)
    begin = ProgressiveFreeze(start=0.0).seams(context(net, total_updates=10)).begin
    assert begin is not None
    begin(net, Moment(0, 0, seed=0))
    assert not net.layers[1][0].weight.requires_grad and net.layers[0][0].weight.requires_grad


def test_a_run_without_a_length_or_a_model_of_one_block_is_refused() -> None:
    with pytest.raises(SettingError, match="progressive_freeze: needs the length of the run"):
        sf.Step(Net(), sf.SGD(), techniques=[ProgressiveFreeze()])
    with pytest.raises(
        SettingError,
        match="progressive_freeze.most: 1 of the blocks before the last one is none: the model has 1",
    ):
        ProgressiveFreeze().seams(context(nn.Linear(2, 2), total_updates=10))


@pytest.mark.parametrize("other", ["freeze", "gradual_unfreeze", "lora", "ia3"])
def test_others_that_freeze_are_refused(other: str) -> None:
    with pytest.raises(PlanConflict, match="Remove one"):
        check([ProgressiveFreeze(), find(other).example()])
