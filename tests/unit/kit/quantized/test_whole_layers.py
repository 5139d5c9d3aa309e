"""Linear layers that stay whole beside a base in few bits are said, with the reason."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.errors import SnugfitWarning
from snugfit.kit.quantized.frozen_linear import QuantisedLinear


def _network(first: nn.Module) -> nn.Module:
    return nn.Sequential(first, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def _step(model: nn.Module, technique: Technique) -> nn.Module:
    return sf.Step(model, sf.AdamW(), techniques=[technique, sf.LoRA(rank=2, targets=["1"])]).model


@pytest.mark.parametrize("technique", [sf.NF4(), sf.Int8()])
def test_a_layer_that_computes_its_weight_is_said_to_stay_whole(technique: Technique) -> None:
    with pytest.warns(
        SnugfitWarning, match=r"'0' stays whole: '0' computes its weight anew .* named in (nf4|int8)\.skip"
    ):
        model = _step(_network(parametrizations.orthogonal(nn.Linear(16, 16))), technique)
    assert any(isinstance(module, QuantisedLinear) for module in model.modules())


def test_layers_inside_of_attention_are_said_with_their_number() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 2)
            self.shared = nn.Linear(16, 16)
            self.again = self.shared
            self.last = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            inputs = self.attention(inputs, inputs, inputs)[0]
            return self.last(self.again(self.shared(inputs)))

    with pytest.warns(
        SnugfitWarning, match="nf4: 'attention.out_proj' and 1 more stay whole: 'attention.out_proj' is in"
    ):
        sf.Step(Attending(), sf.AdamW(), techniques=[sf.NF4()])


def test_nothing_is_said_of_the_head_and_of_what_is_to_stay_whole() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        _step(_network(nn.Linear(16, 16)), sf.NF4())
        _step(_network(parametrizations.orthogonal(nn.Linear(16, 16))), sf.NF4(skip=["0"]))
