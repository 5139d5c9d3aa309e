from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from snugfit.kit.optimizers.low_bit import state_bytes
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.numerics.adamw_4bit import AdamW4bit
from tests.laws import problems
from tests.unit.techniques.test_adamw_8bit import classifier, close_to_the_loop, windows


def test_it_is_the_slow_loop_to_the_last_digits() -> None:
    close_to_the_loop(AdamW4bit.example(), within=1e-3)


def test_it_updates_as_torchaos_own_optimizer_in_a_plain_loop() -> None:
    from torchao.optim import AdamW4bit as Optimizer

    ours, plain = classifier(), classifier()
    step = Step(ours, AdamW4bit(learning_rate=0.01, weight_decay=0.0))
    optimizer = Optimizer(plain.parameters(), lr=0.01, weight_decay=0.0)
    with torch.compiler.set_stance("force_eager"):
        for window in windows(4):
            step(window)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(plain(window[0]), window[1]).backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_its_states_are_less_than_a_sixth_of_those_of_adamw() -> None:
    steps = [Step(classifier(), technique) for technique in (AdamW4bit(min_size=1024), find("adamw")())]
    for step in steps:
        step(windows(1)[0])
    few, many = (state_bytes(step.optimizer) for step in steps)
    assert few < many / 6


@pytest.mark.parametrize("make", problems.STOCK, ids=lambda make: make.__name__)
def test_a_stock_model_learns_and_keeps_its_names(make: problems.Maker) -> None:
    technique = replace(AdamW4bit.example(), min_size=128)
    problem = make((technique,))
    names = [name for name, _ in problem.model().named_parameters()]
    step = problems.make_step(problem, (technique,))
    window = problem.windows()[0]
    losses = [step(window).loss for _ in range(8)]
    assert losses[-1] < losses[0]
    assert [name for name, _ in step.model.named_parameters()] == names
    assert isinstance(step.model, nn.Module)
