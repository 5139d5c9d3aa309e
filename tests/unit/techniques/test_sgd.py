from __future__ import annotations

import pytest
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_is_refused(value: float) -> None:
    refuses(SGD, learning_rate=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_an_impossible_momentum_is_refused(value: float) -> None:
    refuses(SGD, momentum=value)


def test_a_negative_decay_is_refused() -> None:
    refuses(SGD, weight_decay=-0.1)


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(Exception, match="sgd.nesterov: must be false without momentum, found True"):
        SGD(nesterov=True, momentum=0.0)


def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed() -> None:
    model = nn.Linear(2, 2)
    make = (
        SGD(learning_rate=0.3, momentum=0.5, nesterov=True, weight_decay=0.2).seams(context(model)).optimizer
    )
    assert make is not None
    decay, no_decay = make(parameter_groups(model)).param_groups
    for group, weight_decay in ((decay, 0.2), (no_decay, 0.0)):
        assert (group["lr"], group["momentum"], group["nesterov"]) == (0.3, 0.5, True)
        assert group["weight_decay"] == weight_decay
