"""Runs on a stream: points in the plane from a generator, two passes and a half, in windows of one size or of growing ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.data.stream import Stream, StreamedExamples
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import make_training, points, small_model

ROWS, BUFFER, SEED, UPDATES, WINDOW, HELD_OUT = 23, 5, 4, 9, 6, 3
RATE = 0.1
WINDOWS: dict[str, dict[str, Any]] = {
    "examples": {"global_batch": WINDOW},
    "examples that grow": {"global_batch": WINDOW, "start_batch": 2, "batch_warmup": 4},
}


def rows() -> list[tuple[Tensor, Tensor]]:
    return [(inputs.double(), label) for inputs, label in points(ROWS)]


def source() -> Iterator[tuple[Tensor, Tensor]]:
    yield from rows()


def model(seed: int = 1, dropout: float = 0.0) -> nn.Module:
    return small_model(seed, dropout).double()


def stream(of: Any = source, seed: int = SEED, buffer: int = BUFFER) -> StreamedExamples:
    return StreamedExamples(Stream(of, buffer), UPDATES * WINDOW, seed=seed, skip=HELD_OUT)


def training(folder: Path, windows: str = "examples", *, of: Any = source, **more: Any) -> Training:
    examples = stream(of)
    settings = {
        "updates": UPDATES,
        "epochs": None,
        "seed": SEED,
        "evaluate_every": 4,
        "techniques": (SGD(learning_rate=RATE, momentum=0.0),),
        "plan": Plan(micro_batch=2),
        "model": model(),
        **WINDOWS[windows],
        **more,
    }
    return make_training(folder, train=examples, validation=examples.held_out(), **settings)


def by_hand(windows: list[list[tuple[Tensor, Tensor]]]) -> dict[str, Tensor]:
    """The weights after a plain loop over these windows."""
    own = model()
    for window in windows:
        inputs, labels = (torch.stack(each) for each in zip(*window, strict=True))
        own.zero_grad()
        nn.functional.cross_entropy(own(inputs), labels).backward()
        with torch.no_grad():
            for weight in own.parameters():
                assert weight.grad is not None
                weight -= RATE * weight.grad
    return {name: weight.detach() for name, weight in own.named_parameters()}
