from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from snugfit.errors import DataError
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD

LABELS = torch.tensor([0, 1])


class Summed(nn.Module):
    """A module that takes what its call gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, values: Any, scale: float = 1.0) -> torch.Tensor:
        return self.layer(torch.stack(tuple(values), 1)) * scale


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": torch.randn(2, 3), "y": torch.randn(2), "labels": LABELS},
            r"entries x, y beside any 'labels', and the model's forward takes \(input\)",
        ),
        (
            (torch.randn(2, 3), torch.randn(2, 3), LABELS),
            r"gives 2 inputs, and the model's forward takes \(input\)",
        ),
        (
            ([torch.randn(2), torch.randn(2)], LABELS),
            "a list of 2, of which the first is a Tensor, as input 1",
        ),
        ((torch.randn(2, 3).double(), LABELS), r"input 1 is in float64, .* as .to\(torch.float32\)"),
        ((torch.ones(2, 3, dtype=torch.int64), LABELS), "input 1 is in int64"),
    ],
)
def test_inputs_that_forward_does_not_take_are_named(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        Step(nn.Linear(3, 2), SGD())(batch)
    assert caught.value.__cause__ is not None


def test_a_list_that_forward_takes_is_given_to_it() -> None:
    assert Step(Summed(), SGD())(([torch.randn(2) for _ in range(3)], LABELS)).applied


def test_a_failure_of_the_models_own_stays_what_it_is() -> None:
    class Broken(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            raise TypeError("no such thing")

    with pytest.raises(TypeError, match="no such thing"):
        Step(Broken(3, 2), SGD())((torch.randn(2, 3), LABELS))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Step(nn.Linear(3, 2), SGD())((torch.randn(2, 4), LABELS))


class Scored(nn.Module):
    """A classifier that returns its loss and its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layer(x)
        return nn.functional.cross_entropy(logits, labels), logits


class OftenScored(Scored):
    """One whose labels have a default that it cannot do with."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x, labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [Scored, OftenScored])
@pytest.mark.parametrize("named", [True, False])
def test_a_forward_that_needs_the_labels_is_told_how_it_gets_them(
    model: type[nn.Module], named: bool
) -> None:
    inputs = torch.randn(4, 3)
    labels = torch.tensor([0, 1, 1, 0])
    batch: Any = {"x": inputs, "labels": labels} if named else (inputs, labels)
    entries = r"\*\*" if named else r"\*"
    with pytest.raises(DataError, match=rf"gets no labels, and fails: .* model\({entries}batch\)\. The loss"):
        Step(model(), SGD())(batch)

    def forward(module: nn.Module, data: Any) -> Any:
        return module(**data) if named else module(*data)

    step = Step(model(), SGD(), forward=forward, micro_batch=3)
    expected = step.model(inputs, labels)[0].item()
    assert step(batch).loss == pytest.approx(expected)  # the mean of the whole, in two parts


def test_one_number_in_place_of_logits_is_said_to_be_a_loss() -> None:
    with pytest.raises(DataError, match="returns its own loss has one number of all rows"):
        Step(nn.Linear(3, 2), SGD(), forward=lambda model, batch: model(batch[0]).sum())(
            (torch.randn(2, 3), LABELS)
        )


def test_scores_of_the_last_token_alone_are_said_to_need_the_labels() -> None:
    labels = torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(DataError, match=r"unless it gets the labels takes forward=.*model\(\*batch\)"):
        Step(nn.Linear(3, 2), SGD(), forward=lambda model, batch: model(batch[0][:, -1:]))(
            (torch.randn(2, 3, 3), labels)
        )
