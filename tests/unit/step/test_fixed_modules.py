"""Two networks that are trained against each other by two steps, held to a plain loop over both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import find_loss, logits_of
from snugfit.errors import SettingError
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.model_checks.traceless import losses_of_rows
from snugfit.step.step import Step
from snugfit.step.window_gradients import WindowCompute
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.swa import SWA

Window = tuple[Tensor, Tensor]


def networks(norm: bool = False) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    inner: list[nn.Module] = [nn.BatchNorm1d(8)] if norm else []
    critic = nn.Sequential(nn.Linear(2, 8), *inner, nn.Tanh(), nn.Linear(8, 1)).double()
    return generator, critic


def windows(count: int, rows: int = 7) -> list[Window]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(rows, 2, generator=drawn, dtype=torch.float64),
            torch.randn(rows, 3, generator=drawn, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def told_apart(outputs: tuple[Tensor, Tensor], batch: Any) -> Tensor:
    real, drawn = outputs
    return (F.softplus(-real) + F.softplus(drawn))[:, 0]


def taken_for_real(outputs: Tensor, batch: Any) -> Tensor:
    return F.softplus(-logits_of(outputs))[:, 0]


def steps(generator: nn.Module, critic: nn.Module, micro_batch: int | None) -> tuple[Step, Step]:
    def judge(model: nn.Module, batch: Window) -> tuple[Tensor, Tensor]:
        real, noise = batch
        with torch.no_grad():
            drawn = generator(noise)
        return model(real), model(drawn)

    rates = {"learning_rate": 1e-2, "weight_decay": 0.0}
    return (
        Step(
            critic,
            AdamW(**rates),
            told_apart,
            forward=judge,
            fixed_modules=[generator],
            micro_batch=micro_batch,
        ),
        Step(
            generator,
            AdamW(**rates),
            taken_for_real,
            forward=lambda model, noise: critic(model(noise)),
            fixed_modules=[critic],
            micro_batch=micro_batch,
        ),
    )


def by_hand(generator: nn.Module, critic: nn.Module, data: list[Window]) -> None:
    optimizers = [
        torch.optim.AdamW(each.parameters(), lr=1e-2, weight_decay=0.0) for each in (critic, generator)
    ]
    for real, noise in data:
        optimizers[0].zero_grad()
        told_apart((critic(real), critic(generator(noise).detach())), None).mean().backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        taken_for_real(critic(generator(noise)), None).mean().backward()
        optimizers[1].step()


def train(pair: tuple[Step, Step], data: list[Window]) -> None:
    for window in data:
        for step, batch in zip(pair, (window, window[1]), strict=True):
            assert step(batch).applied


def weights(*models: nn.Module) -> list[Tensor]:
    return [each for model in models for each in model.state_dict().values()]


@pytest.mark.parametrize("micro_batch", [None, 7, 3, 1])
def test_two_steps_train_two_networks_as_a_plain_loop_does_in_any_micro_batches(
    micro_batch: int | None,
) -> None:
    own, hand = networks(), networks()
    train(steps(*own, micro_batch), windows(5))
    by_hand(*hand, windows(5))
    torch.testing.assert_close(weights(*own), weights(*hand), rtol=1e-9, atol=1e-11)


def test_a_pair_goes_on_from_what_both_steps_keep() -> None:
    data = windows(6)
    straight, first, second = networks(), networks(), networks()
    train(steps(*straight, 3), data)
    pair = steps(*first, 3)
    train(pair, data[:4])
    kept = [copy.deepcopy(step.state_dict()) for step in pair]
    again = steps(*second, 3)
    for step, state in zip(again, kept, strict=True):
        step.load_state_dict(state)
    train(again, data[4:])
    assert all(map(torch.equal, weights(*straight), weights(*second)))


def test_what_another_step_trains_gets_no_gradient_and_keeps_its_statistics() -> None:
    generator, critic = networks(norm=True)
    _, made = steps(generator, critic, None)
    before = copy.deepcopy(critic.state_dict())
    assert made(windows(1)[0][1]).applied
    assert all(parameter.grad is None and parameter.requires_grad for parameter in critic.parameters())
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())


class Turning(nn.Module):
    """A critic whose every forward in training depends on how many there were, as a spectral norm's does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1).double()
        self.register_buffer("turn", torch.ones(1, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        self.turn.mul_(1.5)
        return self.layer(inputs) * self.turn


def test_each_micro_batch_meets_the_same_buffers_of_another_network() -> None:
    trained = []
    for micro_batch in (None, 3):
        generator, critic = networks()[0], Turning()
        critic.load_state_dict({**critic.state_dict(), "layer.weight": torch.ones(1, 2)})
        _, made = steps(generator, critic, micro_batch)
        assert made(windows(1)[0][1]).applied
        trained.append(weights(generator))
    torch.testing.assert_close(*trained, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "ask",
    [
        lambda step, window: losses_of_rows(step, window),
        lambda step, window: WindowCompute(step, window, step.seams.loss).terms(),
        lambda step, window: step.settle(lambda: [window]),
    ],
    ids=["check of the first window", "losses by row", "settled statistics"],
)
def test_another_network_is_as_before_after_every_forward_that_asks_it(
    ask: Callable[[Step, Batch], object],
) -> None:
    generator, critic = networks(norm=True)
    generator.append(nn.BatchNorm1d(2).double())
    made = Step(
        generator,
        AdamW(learning_rate=1e-2),
        taken_for_real,
        [SWA(start=1)],
        forward=lambda model, noise: critic(model(noise)),
        fixed_modules=[critic],
        total_updates=2,
    )
    window = Batch.of(windows(1)[0][1])
    for _ in range(2):
        made(window)
    before = copy.deepcopy(critic.state_dict())
    ask(made, window)
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())


def test_a_part_that_another_network_gets_later_is_held_too() -> None:
    generator, critic = networks()
    _, made = steps(generator, critic, None)
    critic[1] = nn.BatchNorm1d(8).double()
    assert made(windows(1)[0][1]).applied
    assert torch.equal(critic[1].running_mean, torch.zeros(8, dtype=torch.float64))


def test_a_loss_of_the_whole_window_goes_through_another_network_with_statistics() -> None:
    generator, critic = networks(norm=True)
    critic.pop(-1)

    def compared(outputs: Tensor, batch: Any) -> LossTerms:
        queries = critic(outputs)
        return find_loss("info_nce")((queries, outputs @ torch.ones(2, 8, dtype=torch.float64)), batch)

    compared.couples_rows = True  # type: ignore[attr-defined]
    technique = find("gradient_cache")()
    made = Step(
        generator, AdamW(learning_rate=1e-2), compared, [technique], micro_batch=3, fixed_modules=[critic]
    )
    before = copy.deepcopy(critic.state_dict())
    assert made((windows(1)[0][1], torch.zeros(7))).applied
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())


def test_a_network_that_nobody_is_said_to_train_is_refused_with_the_way_to_say_so() -> None:
    generator, critic = networks()
    with pytest.raises(
        SettingError, match=r"another step trains them: sf.Step\(…, fixed_modules=\[critic\]\)"
    ):
        Step(
            generator,
            AdamW(learning_rate=1e-2),
            taken_for_real,
            forward=lambda model, noise: critic(model(noise)),
        )


def test_what_is_scored_leaves_the_statistics_of_the_other_network() -> None:
    generator, critic = networks(norm=True)
    _, made = steps(generator, critic, None)
    before = copy.deepcopy(critic.state_dict())
    evaluate(Scored.of(made), [Batch.of(windows(1)[0][1])], {})
    assert all(torch.equal(value, before[name]) for name, value in critic.state_dict().items())


def test_a_network_that_shares_a_part_with_the_model_is_refused() -> None:
    generator, _ = networks()
    critic = nn.Sequential(generator[0], nn.Linear(8, 1))
    with pytest.raises(SettingError, match="fixed_modules: have '0.weight' of the model"):
        Step(generator, AdamW(learning_rate=1e-2), taken_for_real, fixed_modules=[critic])
