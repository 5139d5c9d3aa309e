from __future__ import annotations

import pytest
from torch import nn

from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.pattern_rates import PatternRates


def groups(technique: PatternRates) -> dict[str, tuple[float, float, list[str]]]:
    """Name of the group: rate, weight decay and names of the parameters."""
    model = nn.ModuleDict({"body": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    step = Step(model, AdamW(learning_rate=0.1, weight_decay=0.01), techniques=[technique])
    return {
        group["name"]: (group["lr"], group["weight_decay"], group["param_names"])
        for group in step.optimizer.param_groups
    }


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_factor_is_refused(rate: float) -> None:
    with pytest.raises(SettingError, match=r"^pattern_rates\.rates: must be patterns with positive factors"):
        PatternRates({"head": rate})


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(SettingError, match=r"^pattern_rates\.rates: must be given, unless no_decay is"):
        PatternRates({})


def test_parameters_that_match_have_a_multiple_of_the_rate() -> None:
    assert groups(PatternRates({"head": 10.0})) == {
        "decay": (0.1, 0.01, ["body.weight"]),
        "head decay": (1.0, 0.01, ["head.weight"]),
        "no_decay": (0.1, 0.0, ["body.bias"]),
        "head no_decay": (1.0, 0.0, ["head.bias"]),
    }


def test_the_first_match_counts() -> None:
    found = groups(PatternRates({"head.weight": 2.0, "head": 10.0}))
    assert found["head.weight decay"] == (0.2, 0.01, ["head.weight"])
    assert found["head no_decay"] == (1.0, 0.0, ["head.bias"])


def test_parameters_may_be_spared_the_weight_decay() -> None:
    assert groups(PatternRates({}, no_decay=("body",))) == {
        "spared decay": (0.1, 0.0, ["body.weight"]),
        "decay": (0.1, 0.01, ["head.weight"]),
        "no_decay": (0.1, 0.0, ["body.bias", "head.bias"]),
    }


def test_a_pattern_of_nothing_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SettingError, match=r"^pattern_rates\.rates: 'haed' matches no parameter\. Did you mean 'head'"
    ):
        groups(PatternRates({"haed": 2.0}))
    with pytest.raises(
        SettingError, match=r"^pattern_rates\.no_decay: 'norm' matches no parameter\. The model has: "
    ):
        groups(PatternRates({"head": 2.0}, no_decay=("norm",)))
