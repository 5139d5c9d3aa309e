"""Losses of preferences by themselves: numbers of rows, weights, sums of the window, settings."""

from __future__ import annotations

import math

import pytest
import torch

from snugfit.core.losses import cross_entropy, of_answers
from snugfit.errors import SettingError
from snugfit.kit.losses.preference_losses import (
    DPO,
    IPO,
    KTO,
    ORPO,
    PreferenceLoss,
    log_of_the_rest,
)


def outputs(rows: int, answers: int = 2) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    scores = -torch.rand(rows, answers, generator=draw, dtype=torch.float64) * 5
    return {
        "log_probabilities": scores.clone().requires_grad_(),
        "reference": scores.flip(0) - 1,
        "tokens": torch.full((rows, answers), 3.0, dtype=torch.float64),
        "text_log_probability": scores[:, 0] - 2,
        "text_tokens": torch.full((rows,), 5.0),
        "divergence": torch.linspace(-1, 2, rows, dtype=torch.float64),
    }


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("loss", [DPO, IPO, ORPO, KTO])
def test_a_strength_that_is_not_positive_is_refused(loss: type[PreferenceLoss], beta: float) -> None:
    with pytest.raises(SettingError, match="preference.beta: must be positive"):
        loss(beta=beta)


def test_weights_of_answers_that_are_not_positive_are_refused() -> None:
    with pytest.raises(SettingError, match="preference.undesirable"):
        KTO(undesirable=0.0)


@pytest.mark.parametrize("loss", [DPO(), IPO(), ORPO(), ORPO(form="trl"), KTO()])
def test_a_row_without_a_token_that_is_scored_weighs_nothing(loss: PreferenceLoss) -> None:
    made = outputs(3, 2 if loss.pairs else 1)
    made["tokens"][1] = 0
    terms = loss(made, {"desirable": torch.tensor([True, False, True])})
    assert terms.weights is not None
    assert terms.weights.tolist() == [1, 0, 1]
    assert torch.isfinite(terms.values).all()


def test_sums_of_the_window_take_the_place_of_those_of_the_rows() -> None:
    made, good = outputs(4, 1), torch.tensor([True, False, True, True])
    window = KTO()(made, {"desirable": good}).values
    sums = KTO().window_terms(made).sum(dim=0)
    part = {name: value[:1] for name, value in made.items()}
    given = {"desirable": good[:1], "window_sums": sums.expand(1, -1)}
    torch.testing.assert_close(KTO()(part, given).values, window[:1])
    assert KTO()(part, {"desirable": good[:1]}).values[0] != window[0]


def test_the_reference_point_of_kto_is_never_below_zero_and_has_no_gradient() -> None:
    made, good = outputs(3, 1), torch.tensor([True, True, False])
    made["divergence"] = torch.full((3,), -5.0, dtype=torch.float64, requires_grad=True)
    values = KTO()(made, {"desirable": good}).values
    made["divergence"] = torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(values, KTO()(made, {"desirable": good}).values)
    assert not KTO().window_terms(outputs(2, 1)).requires_grad


def test_the_rest_of_a_probability_keeps_its_digits_at_both_ends() -> None:
    near, far = log_of_the_rest(torch.tensor([-1e-12, -50.0], dtype=torch.float64))
    assert float(near) == pytest.approx(math.log(1e-12), rel=1e-6)
    assert float(far) == pytest.approx(-math.exp(-50.0), rel=1e-6)
    certain = torch.zeros(1, requires_grad=True)
    log_of_the_rest(certain).sum().backward()
    assert certain.grad is not None
    assert torch.isfinite(certain.grad).all()


def test_logits_are_refused_by_name_and_other_losses_take_none() -> None:
    with pytest.raises(SettingError, match="needs the log-probabilities of answers, and found Tensor"):
        DPO()(torch.zeros(2, 3), {})
    assert of_answers(DPO())
    assert not of_answers(cross_entropy)
    assert not of_answers(None)
