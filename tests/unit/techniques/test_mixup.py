from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.errors import SettingError
from snugfit.kit.mixing import share_of
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.mixup import Mixup, mixed_inputs
from tests.unit.techniques.settings import MOMENT, context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_alpha_is_refused(value: float) -> None:
    refuses(Mixup, alpha=value)


def mixed(window: Batch, windows: int = 0) -> Batch:
    seams = Mixup(alpha=1.0).seams(context())
    assert seams.batch is not None
    return seams.batch(window, replace(MOMENT, windows=windows, seed=windows))


def window(rows: int = 5) -> Batch:
    numbers = torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))
    return Batch.of({"x": numbers, "context": {"y": numbers * 2}, "labels": torch.arange(rows) % 2})


def test_every_floating_input_of_a_row_is_mixed_by_the_same_share_and_labels_are_not() -> None:
    given = window()
    found = mixed(given)
    share = share_of(found)
    assert share is not None and share.shape == (5,)
    for row, other in enumerate([1, 0, 3, 2, 4]):
        expected = share[row] * given.data["x"][row] + (1 - share[row]) * given.data["x"][other]
        torch.testing.assert_close(found.data["x"][row], expected)
    torch.testing.assert_close(found.data["context"]["y"], 2 * found.data["x"])
    assert torch.equal(found.data["labels"], given.data["labels"])


def test_the_batch_that_was_given_stays_as_it_was() -> None:
    given = window()
    before = given.data["x"].clone()
    mixed(given)
    assert torch.equal(given.data["x"], before) and not given.extras


def test_the_same_window_is_mixed_alike_again_and_another_one_otherwise() -> None:
    one, again, other = mixed(window()), mixed(window()), mixed(window(), windows=1)
    assert torch.equal(one.data["x"], again.data["x"])
    assert not torch.equal(one.data["x"], other.data["x"])


@pytest.mark.parametrize("tensor", [torch.arange(4), torch.ones(4, dtype=torch.bool)])
def test_an_input_that_is_no_number_is_refused_and_the_way_out_named(tensor: Tensor) -> None:
    with pytest.raises(SettingError, match=r"mixup: an input of torch\.\w+, .* Use 'hidden_mixup'"):
        mixed_inputs({"x": torch.zeros(4), "ids": tensor, "labels": torch.zeros(4)}, torch.ones(4))


def test_an_evaluation_is_plain() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    inputs, labels = torch.randn(6, 3), torch.tensor([0, 1] * 3)
    found = []
    for techniques in ([], [Mixup(alpha=1.0)]):
        step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), techniques=techniques)
        found.append(evaluate(Scored.of(step), [Batch.of((inputs, labels))], {})["loss"])
    assert found[0] == found[1]


def test_a_row_that_is_selected_keeps_its_share_and_its_partners_label() -> None:
    """With hard examples: the loss of the kept rows is what those rows had in the whole window."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(6, 3).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    terms: list[LossTerms] = []

    def recorded(outputs: Any, data: Any) -> LossTerms:
        terms.append(LossTerms(nn.functional.cross_entropy(outputs, data[1], reduction="none")))
        return terms[-1]

    model = nn.Linear(3, 3).double()
    techniques = [Mixup(alpha=1.0), HardExamples(fraction=0.5)]
    step = Step(model, torch.optim.SGD(model.parameters(), lr=0.1), recorded, techniques)
    result = step((inputs, labels))
    own, other, kept_own, kept_other = (term.values.detach() for term in terms)
    share = share_of(step.seams.batch(Batch.of((inputs, labels)), type(step.progress)(), step.seed))
    assert share is not None
    whole = share.double() * own + (1 - share.double()) * other
    rows = whole.argsort(descending=True)[:3].sort().values
    torch.testing.assert_close(kept_own, own[rows])
    torch.testing.assert_close(kept_other, other[rows])
    assert result.loss == pytest.approx(float(whole[rows].mean()))
