from __future__ import annotations

import math

import pytest

from snugfit.techniques.learning.flat_cosine import FlatCosine
from tests.unit.techniques.settings import refuses


def test_impossible_settings_are_refused() -> None:
    refuses(FlatCosine, warmup=-1)
    refuses(FlatCosine, flat=1.0)
    refuses(FlatCosine, flat=-0.1)


def fastai(position: float, flat: float) -> float:
    """`combined_cos(flat, 1, 1, 0)` of fastai.callback.schedule at a position in [0, 1]."""
    if position <= flat:
        return 1.0
    inner = (position - flat) / (1 - flat)
    return 1 + (1 + math.cos(math.pi * (1 - inner))) * (0 - 1) / 2


@pytest.mark.parametrize("flat", [0.0, 0.5, 0.75])
def test_without_warmup_it_is_fastais_fit_flat_cos(flat: float) -> None:
    for update in range(21):
        expected = fastai(update / 20, flat)
        assert FlatCosine(flat=flat).factor(update, total_updates=20) == pytest.approx(expected, abs=1e-12)


def test_the_flat_part_counts_from_the_end_of_warmup() -> None:
    factors = [FlatCosine(warmup=2, flat=0.5).factor(update, total_updates=6) for update in range(7)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.0])
