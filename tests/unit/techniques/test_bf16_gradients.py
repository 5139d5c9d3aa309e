"""On one device; what several come to is in tests/ranks/test_rank_compression.py."""

from __future__ import annotations

import pytest
import torch

from snugfit.errors import SnugfitWarning
from snugfit.techniques.numerics.bf16_gradients import BF16Gradients
from tests.laws import problems


def test_one_device_computes_as_without_it_and_says_so() -> None:
    problem = problems.reader(())
    plain = problems.make_step(problem, ())
    with pytest.warns(SnugfitWarning, match="^bf16_gradients: does nothing, as one device exchanges no grad"):
        step = problems.make_step(problem, (BF16Gradients(),))
    for window in problem.windows():
        plain(window), step(window)
    weights = problems.weights(plain)
    assert all(torch.equal(found, weights[name]) for name, found in problems.weights(step).items())
