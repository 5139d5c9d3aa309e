"""A run tells once which kernels its attention was computed in."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import CLASSES, INPUTS, events, finish, make_training


class Attentive(nn.Module):
    """Each coordinate of a point is a token."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(INPUTS * 4, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        tokens = self.lift(points.unsqueeze(-1))
        mixed = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        logits: Tensor = self.head(torch.relu(mixed.flatten(1)))
        return logits


def test_the_kernel_is_told_once_with_the_first_update(tmp_path: Path) -> None:
    for kernel in ("math", "flash"):
        techniques = (SGD(learning_rate=0.1), find("attention_kernel")(kernel=kernel))
        training = make_training(tmp_path / kernel, model=Attentive(), techniques=techniques)
        finish(training)
        (told,) = events(training, "attention")
        assert (told["kernels"], told["update"]) == ([kernel], 1)


def test_a_run_without_attention_tells_of_none(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    finish(training)
    assert not events(training, "attention")
    assert training.step.kernels == set()
