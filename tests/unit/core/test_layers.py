from __future__ import annotations

import pytest
from torch import nn

from snugfit.core.layers import base_of, is_conv1d, last_linear, layers
from snugfit.techniques.learning.ia3 import ia3_
from snugfit.techniques.learning.lora import lora_


@pytest.mark.parametrize("adapt", [lambda model: model, lora_, ia3_], ids=["plain", "lora", "ia3"])
def test_an_adapted_layer_is_one_layer_with_its_adapter(adapt: object) -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    assert callable(adapt)
    adapt(model)
    assert list(layers(model)) == [model, model[0], model[1], model[2]]
    assert type(base_of(model[2])) is nn.Linear and base_of(model[2]).out_features == 3
    assert last_linear(model) is model[2]


def test_an_adapter_of_another_kind_of_layer_is_not_the_last_linear_layer() -> None:
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(
        nn.Linear(4, 6), nn.Unflatten(1, (6, 1)), nn.Conv1d(6, 2, 1), nn.Flatten(), Conv1D(3, 2)
    )
    lora_(model, rank=1, targets=["2", "4"])  # the adapter of the Conv1D has linear layers
    assert last_linear(model) is model[0]
    assert is_conv1d(base_of(model[4])) and not is_conv1d(model[2])


def test_a_model_without_a_linear_layer_has_no_last_one() -> None:
    assert last_linear(nn.Conv2d(1, 1, 1)) is None
