from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.selection import check
from snugfit.core.technique import RollBack, Technique
from snugfit.errors import PlanConflict, TrainingFailed
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.optimizer_in_backward import OptimizerInBackward, stepping_in_backward
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved
from tests.unit.run.training.runs import events, finish, make_training, points, resumed, small_model
from tests.unit.techniques.settings import optimizers_beside

OPTIMIZERS = optimizers_beside(OptimizerInBackward)


def trained(step: Step) -> dict[str, Any]:
    """The step's state but for whether padding is cut: one that takes windows whole has nothing to cut."""
    return {name: value for name, value in saved(step).items() if name != "padding"}


WINDOW = (torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize("make", [problems.reader, problems.gpt2], ids=problems.name_of)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
def test_weights_and_moments_are_those_of_a_step_after_the_backward_bit_for_bit(
    optimizer: Technique, make: problems.Maker
) -> None:
    problem = make((optimizer,))
    plain, inside = (
        make_step(problem, [optimizer, *more], micro_batch=3, dtype=torch.float32)
        for more in ((), (OptimizerInBackward(),))
    )
    for window in problem.windows(torch.float32):
        assert plain(window).applied and inside(window).applied
        assert not problems.gradients(inside)
    assert not differences(trained(plain), trained(inside))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=problems.name_of)
@pytest.mark.parametrize("name", ["pure_bf16", "optimizer_offload"])
def test_steps_of_another_type_and_elsewhere_are_those_after_the_backward_bit_for_bit(
    name: str, optimizer: Technique
) -> None:
    others = (optimizer, find(name)())
    if optimizer.card.name in others[1].card.conflicts:
        pytest.skip(others[1].card.conflicts[optimizer.card.name])
    problem = problems.reader(others)
    plain, inside = (
        make_step(problem, [*others, *more], dtype=torch.float32) for more in ((), (OptimizerInBackward(),))
    )
    for window in problem.windows(torch.float32):
        assert plain(window).applied and inside(window).applied
        assert not problems.gradients(inside)
    assert not differences(trained(plain), trained(inside))


@pytest.mark.parametrize(
    "name",
    ["ema", "swa", "lookahead", "hard_examples", "gradient_cache", "gradual_unfreeze", "cosine", "lora"],
)
def test_what_needs_no_whole_gradient_gives_the_same_as_without_it(name: str) -> None:
    others = (find(name).example(), AdamW(learning_rate=0.01))
    problem = problems.main(others)
    plain, inside = (make_step(problem, [*others, *more]) for more in ((), (OptimizerInBackward(),)))
    for window in problem.windows():
        assert plain(window).applied and inside(window).applied
    assert not differences(trained(plain), trained(inside))
    assert not differences(*map(problems.evaluated_weights, (plain, inside)))


@pytest.mark.parametrize("name", ["clip_norm", "clip_value", "gradient_noise", "spike_guard", "fp16", "sam"])
def test_what_needs_the_whole_gradient_is_refused_by_name(name: str) -> None:
    for pair in (
        [OptimizerInBackward(), find(name).example()],
        [find(name).example(), OptimizerInBackward()],
    ):
        with pytest.raises(PlanConflict, match=f"'{name}'.*before the whole gradient is known.*Remove one"):
            check(pair)


def alive(model: nn.Module) -> int:
    return sum(parameter.grad.nbytes for parameter in model.parameters() if parameter.grad is not None)


@pytest.mark.parametrize(("micro_batch", "whole"), [(None, False), (2, True)])
def test_with_one_micro_batch_no_more_than_one_gradient_stands_there(
    micro_batch: int | None, whole: bool
) -> None:
    model = nn.Sequential(*(nn.Linear(2 if not place else 16, 16) for place in range(8)), nn.Linear(16, 3))
    step = Step(model, SGD(learning_rate=0.1), techniques=[OptimizerInBackward()], micro_batch=micro_batch)
    seen: list[int] = []
    step.optimizer.register_step_pre_hook(lambda *_: seen.append(alive(model)))
    assert step(WINDOW).applied
    parameters = list(model.parameters())
    assert len(seen) == len(parameters) + 1 and seen[-1] == alive(model) == 0
    total = sum(parameter.nbytes for parameter in parameters)
    assert max(seen) == (total if whole else max(parameter.nbytes for parameter in parameters))


class Odd(nn.Module):
    """Frozen, tied, unused, and used only now and then."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(2, 8).requires_grad_(False)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.unused, self.seldom = nn.Linear(2, 2), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.second(self.first(self.frozen(inputs)).tanh())
        if self.calls % 3 == 1:  # in an earlier micro-batch than the last
            hidden = hidden + self.seldom(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


@pytest.mark.parametrize("micro_batch", [None, 2, 1])
def test_frozen_tied_unused_and_seldom_used_parameters_are_as_in_a_plain_step(
    micro_batch: int | None,
) -> None:
    plain, inside = (
        Step(Odd(), AdamW(learning_rate=0.1), techniques=more, micro_batch=micro_batch)
        for more in ((), (OptimizerInBackward(),))
    )
    for _ in range(3):
        plain(WINDOW), inside(WINDOW)
    assert not differences(trained(plain), trained(inside))


def test_in_a_loop_by_hand_the_gradients_are_gone_after_the_backward() -> None:
    models = [small_model(dropout=0.0) for _ in range(2)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in models]
    inputs, labels = WINDOW
    for _ in range(3):
        losses = [nn.functional.cross_entropy(model(inputs), labels) for model in models]
        optimizers[0].zero_grad()
        losses[0].backward()
        optimizers[0].step()
        with stepping_in_backward(optimizers[1]):
            losses[1].backward()
        assert alive(models[1]) == 0
    assert not differences(*(dict(model.named_parameters()) for model in models))
    nn.functional.cross_entropy(models[1](inputs), labels).backward()
    assert alive(models[1]) > 0, "a hook was left behind"


def broken_training(folder: Path, window: int, **settings: Any) -> Any:
    """A run of two epochs of three windows; at that window the gradient of the first layer, the last to come, is infinite."""
    model = small_model()
    training = make_training(
        folder,
        model=model,
        train=points(12),
        techniques=(SGD(learning_rate=0.1, momentum=0.9), OptimizerInBackward()),
        **{"checkpoint_every": 1, **settings},
    )

    def overflow(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("inf") if training.step.progress.windows == window - 1 else gradient

    model[0].weight.register_hook(overflow)  # type: ignore[operator]
    return training


def test_a_gradient_that_is_not_finite_sends_the_run_back_to_its_checkpoint(tmp_path: Path) -> None:
    training = broken_training(tmp_path, 3)
    result = finish(training)
    assert (result.status, result.went_back, result.updates) == ("finished", [3], 5)
    (skipped,) = events(training, "skipped")
    assert "after other weights had been updated" in skipped["reason"]

    # the same updates by hand, without the window
    plain = Step(small_model(), SGD(learning_rate=0.1, momentum=0.9), total_updates=6, nominal=4.0)
    whole = make_training(tmp_path / "other", train=points(12))
    for number, window in enumerate(whole.loader.windows(0, 6)):
        if number == 2:
            plain.progress.consume(window.rows, applied=False)
        else:
            plain(window)
    assert not differences(trained(plain), trained(training.step))


def test_without_a_checkpoint_to_go_back_to_the_run_ends_and_saves_nothing(tmp_path: Path) -> None:
    training = broken_training(tmp_path, 1)
    with pytest.raises(TrainingFailed, match=r"^window 1: .*there is no checkpoint to go back to"):
        finish(training)
    assert not training.folder.has_checkpoints


def test_at_the_limit_the_run_ends_with_the_checkpoint_from_before(tmp_path: Path) -> None:
    training = broken_training(tmp_path, 3, non_finite_limit=1)
    with pytest.raises(TrainingFailed, match=r"^window 3: .*non_finite\.limit: 1"):
        finish(training)
    assert resumed(broken_training(tmp_path, 0)).step.progress.windows == 2


def test_in_ones_own_loop_the_result_says_that_the_weights_are_damaged() -> None:
    model = small_model()
    step = Step(model, SGD(learning_rate=0.1), techniques=[OptimizerInBackward()])
    model[0].weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[operator]
    result = step(WINDOW)
    assert isinstance(result.refusal, RollBack) and not result.applied
