"""A model that mixes types where it computes in 16 bits: the module, the line and the remedy are named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.errors import SettingError

ROWS = (torch.randint(0, 8, (4, 3)), torch.arange(4) % 2)


class Collected(nn.Module):
    """A layer that adds what it computes into a tensor of float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        computed = self.layer(inputs)
        return torch.zeros(len(inputs), 8).index_add_(0, torch.arange(len(inputs)), computed)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(8, 8), Collected(), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.words(tokens).mean(1)))


@pytest.mark.parametrize("technique", [sf.BF16(), sf.PureBF16()])
def test_a_module_that_mixes_types_in_16_bits_is_named_with_its_line_and_not_the_inputs(
    technique: sf.Technique,
) -> None:
    step = sf.Step(Network(), sf.AdamW(), techniques=[technique])
    expected = r"computes in bfloat16, and module 'block' \(Collected\) cannot at .*test_type_clashes.py:\d+: index_add_"
    with pytest.raises(SettingError, match=expected) as caught:
        step(ROWS)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_loss_that_mixes_types_in_16_bits_is_named() -> None:
    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return torch.zeros(len(outputs)).index_add_(0, torch.arange(len(outputs)), outputs[:, 0])

    network = nn.Sequential(nn.Embedding(8, 8), nn.Flatten(), nn.Linear(24, 2))
    step = sf.Step(network, sf.AdamW(), loss=loss, techniques=[sf.BF16()])
    with pytest.raises(SettingError, match=r"the loss cannot at .*test_type_clashes.py:\d+: index_add_"):
        step(ROWS)


def test_a_model_that_mixes_types_in_float32_is_left_to_torch() -> None:
    class Halved(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.half())

    with pytest.raises(RuntimeError, match="same dtype"):
        sf.Step(Halved(3, 2), sf.AdamW())((torch.randn(4, 3), ROWS[1]))
