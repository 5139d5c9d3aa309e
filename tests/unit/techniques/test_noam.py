from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.layer_rates import LayerRates
from snugfit.techniques.learning.noam import Noam, noam_rate
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import refuses


def test_impossible_settings_are_refused() -> None:
    refuses(Noam, dim=0)
    refuses(Noam, warmup=0)


def test_the_base_model_of_the_paper_peaks_at_seven_ten_thousandths_after_4000_updates() -> None:
    rates = [noam_rate(number, dim=512, warmup=4000) for number in range(1, 20_000)]
    assert max(rates) == rates[3999] == pytest.approx(512**-0.5 * 4000**-0.5)
    assert rates[0] == pytest.approx(512**-0.5 * 4000**-1.5)
    assert rates[15_999] == pytest.approx(rates[3999] / 2)


def test_a_step_at_learning_rate_one_has_the_rate_of_the_paper() -> None:
    model = nn.Linear(2, 2)
    step = Step(model, torch.optim.SGD(model.parameters(), lr=1.0), techniques=[Noam(dim=16, warmup=2)])
    batch = (torch.randn(3, 2), torch.tensor([0, 1, 0]))
    assert [step(batch).learning_rate for _ in range(4)] == pytest.approx(
        [noam_rate(number, 16, 2) for number in (1, 2, 3, 4)]
    )


def test_a_learning_rate_that_was_meant_to_be_the_peak_is_refused_before_training() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(
        SettingError, match=r"^noam: with the optimizer's learning_rate 5e-05, .* 3\.5e-08\. Give"
    ):
        Step(model, torch.optim.SGD(model.parameters(), lr=5e-5), techniques=[Noam()])


def test_the_low_rate_of_one_layer_is_no_reason_to_refuse() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    step = Step(model, SGD(learning_rate=1.0), techniques=[Noam(), LayerRates(decay=0.01)])
    assert min(group["lr"] for group in step.optimizer.param_groups) < 1e-12
