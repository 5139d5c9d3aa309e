from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.errors import SettingError
from snugfit.step.model_checks.outside_weights import check_outside
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD

GLOBAL_HEAD = nn.Linear(3, 3)
WINDOW = (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0]))


class Margin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))

    def forward(self, outputs: Tensor, data: Any) -> Tensor:
        return (outputs @ self.weight).square().sum(1)


class Centre(nn.Module):
    def __init__(self, moves: bool) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))
        self.moves = moves

    def forward(self, outputs: Tensor, data: Any) -> Tensor:
        if self.moves:
            self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return (outputs - self.centre).square().sum(1)


class Plain:
    def __init__(self) -> None:
        self.heads = {"own": nn.Linear(3, 3)}

    def __call__(self, outputs: Tensor, data: Any) -> Tensor:
        return self.heads["own"](outputs).square().sum(1)


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model, self.head, self.other = model, nn.Linear(3, 3), nn.Linear(2, 2)

    def by_head(self, outputs: Tensor, data: Any) -> Tensor:
        return self.head(outputs).square().sum(1)

    def by_model(self, outputs: Tensor, data: Any) -> Tensor:
        return outputs.square().sum(1) + self.model.weight.square().sum()


def by_global(outputs: Tensor, data: Any) -> Tensor:
    return GLOBAL_HEAD(outputs).square().sum(1)


def by_helper(outputs: Tensor, data: Any) -> Tensor:
    return by_global(outputs, data)


def by_scale(outputs: Tensor, data: Any, scale: Any = None) -> Tensor:
    return outputs.square().sum(1) * scale


def closure() -> Callable[[Any, Any], Tensor]:
    scale = nn.Parameter(torch.ones(()))
    return lambda outputs, data: scale * outputs.square().sum(1)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (Margin(), "weight"),
        (Plain(), "heads.own.weight"),
        (closure(), "scale"),
        (by_global, "GLOBAL_HEAD.weight"),
        (by_helper, "by_global.GLOBAL_HEAD.weight"),
        (functools.partial(by_scale, scale=nn.Parameter(torch.ones(()))), "scale"),
        (Trainer(nn.Linear(4, 3)).by_head, "head.weight"),
    ],
    ids=["module", "object", "closure", "global", "helper", "partial", "method"],
)
def test_trainable_weights_of_a_loss_are_refused_by_name(loss: Any, name: str) -> None:
    with pytest.raises(
        SettingError, match=rf"^loss: got \d trainable weights.*'{name}'.*submodule of the model"
    ):
        Step(nn.Linear(4, 3), SGD(), loss)


def test_a_module_that_forward_uses_beside_the_model_is_refused() -> None:
    head = nn.Linear(3, 3)
    with pytest.raises(SettingError, match=r"^forward: got 2 trainable weights.*'head\.weight'"):
        Step(nn.Linear(4, 3), SGD(), forward=lambda model, batch: head(model(batch[0])))


def test_a_run_with_such_a_loss_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="loss: got 1 trainable"):
        sf.train(
            nn.Linear(4, 3), list(zip(*WINDOW, strict=True)), loss=Margin(), output=tmp_path, track=False
        )
    assert list(tmp_path.iterdir()) == []


def test_weights_of_the_model_and_frozen_ones_are_the_functions_own_affair() -> None:
    model, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    step = Step(
        model,
        SGD(),
        Trainer(model).by_model,
        forward=lambda model, batch: model(batch[0]) - teacher(batch[0]),
    )
    assert step(WINDOW).applied


def test_a_teacher_that_is_not_frozen_is_refused_with_the_call_that_freezes_it() -> None:
    teacher = nn.Linear(4, 3)

    def loss(outputs: Tensor, data: Any) -> Tensor:
        with torch.no_grad():
            soft = teacher(data[0])
        return (outputs - soft).square().sum(1)

    with pytest.raises(
        SettingError, match=r"under no_grad, freeze them: teacher\.requires_grad_\(False\)\. If"
    ):
        Step(nn.Linear(4, 3), SGD(), loss)
    teacher.requires_grad_(False)
    assert Step(nn.Linear(4, 3), SGD(), loss)(WINDOW).applied


def test_a_teacher_that_the_loss_moves_is_refused_before_the_first_update() -> None:
    model, average = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    before = model.weight.detach().clone()

    def loss(outputs: Tensor, data: Any) -> Tensor:
        with torch.no_grad():
            average.weight.lerp_(outputs.detach().mean().expand(3, 4), 0.1)
        return (outputs - average(data[0])).square().sum(1)

    step = Step(model, SGD(learning_rate=0.1), loss)
    with pytest.raises(SettingError, match=r"^loss: changes the frozen weight 'average\.weight'"):
        step(WINDOW)
    assert torch.equal(model.weight, before)


def test_a_module_of_the_model_that_is_called_in_forward_trains() -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 3), "head": nn.Linear(3, 3)})
    before = model["head"].weight.detach().clone()
    Step(model, SGD(learning_rate=0.1), forward=lambda model, batch: model["head"](model["body"](batch[0])))(
        WINDOW
    )
    assert not torch.equal(model["head"].weight, before)


def test_a_buffer_that_the_loss_changes_is_refused_before_the_first_update() -> None:
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    step = Step(model, SGD(learning_rate=0.1), Centre(moves=True))
    with pytest.raises(SettingError, match="^loss: changes its buffer 'centre'"):
        step(WINDOW)
    assert torch.equal(model.weight, before) and model.weight.grad is None


def test_a_buffer_that_stays_is_a_constant() -> None:
    assert Step(nn.Linear(4, 3), SGD(), Centre(moves=False))(WINDOW).applied
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), reduction="none")
    assert Step(nn.Linear(4, 3), SGD(), weighted)(WINDOW).applied


def test_batch_norm_beside_the_model_is_refused_unless_its_statistics_stay() -> None:
    norm = nn.BatchNorm1d(3, affine=False)

    def loss(outputs: Tensor, data: Any) -> Tensor:
        return norm(outputs).square().sum(1)

    with pytest.raises(SettingError, match="^loss: got batch norm in training mode.*'norm'"):
        check_outside(nn.Linear(4, 3), loss, None)
    norm.eval()
    check_outside(nn.Linear(4, 3), loss, None).check()
