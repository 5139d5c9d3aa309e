"""Runs on a mixture: texts of three sources with weights, in windows of examples or of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from snugfit.core.job import Plan
from snugfit.data.examples import Balance, Examples
from snugfit.data.named_sources import Sources, sources_of
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.sgd import SGD
from tests.laws.windows import EXAMPLES, RATE, collate, texts, words
from tests.unit.run.training.runs import make_training

SIZES = (11, 5, 3)
WEIGHTS = (3, 1, 2)
WINDOWS: dict[str, dict[str, Any]] = {
    "examples": {"global_batch": 7},
    "examples that grow": {"global_batch": 7, "start_batch": 2, "batch_warmup": 5},
    "tokens": {"batch_tokens": 30},
}


VALUES = ["few" if n in (2, 9) else "usual" if n % 3 or 11 <= n < 16 else "other" for n in range(EXAMPLES)]
"""A value of each text; of the second source, which gives one example of an epoch, all have one, and the third lacks one."""


def balanced(examples: Examples) -> Examples:
    """The texts, balanced by their values."""
    names = sorted({*VALUES})
    numbers = np.array([names.index(value) for value in VALUES])
    examples.balance = Balance("kind", tuple(names), numbers)
    return examples


def one_source() -> Examples:
    """The texts as rows of one file."""
    return Examples(texts(), "file", range(EXAMPLES))


def mixture(stopping: str = "first_exhausted") -> Examples:
    """The texts as rows of three files."""
    assert sum(SIZES) == EXAMPLES
    written = {f"s{n}": {"from": f"s{n}.jsonl", "weight": weight} for n, weight in enumerate(WEIGHTS)}
    sources = sources_of(written, stopping)  # type: ignore[arg-type]
    assert isinstance(sources, Sources)
    starts = [sum(SIZES[:n]) for n in range(len(SIZES))]
    return Examples(texts(), "files", range(EXAMPLES), sources=sources, starts=starts)


def training(
    folder: Path,
    windows: str,
    *,
    stopping: str = "first_exhausted",
    data: Examples | None = None,
    **more: Any,
) -> Training:
    """Three and a half epochs, evaluated after each, by SGD with a rate that falls to 0."""
    settings = {
        "epochs": 3.5,
        "techniques": (SGD(learning_rate=RATE, momentum=0.0), Linear()),
        "plan": Plan(micro_batch=2),
        "model": words(),
        **WINDOWS[windows],
        **more,
    }
    data = mixture(stopping) if data is None else data
    held_out = data.at([0, 3, 12, 17, 18])
    return make_training(folder, train=data, validation=held_out, collate=collate, **settings)
