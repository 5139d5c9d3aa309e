"""Operations on pictures beside their formulas, pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from snugfit.kit.pictures.picture_operations import SIGNED, UNSIGNED, changed, drawn_name, translations
from tests.unit.kit.pictures.picture_formulas import reference

ALL = {**SIGNED, **translations(0.4), **UNSIGNED}


def picture(seed: int = 0, gray: bool = False) -> np.ndarray:
    shape = (29, 23) if gray else (29, 23, 3)
    drawn = np.random.default_rng(seed).normal(120, 40, shape)
    return drawn.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_an_operation_is_its_formula(name: str, gray: bool) -> None:
    values = picture(gray=gray)
    strengths = (0.0, 0.3, 1.0) if name in UNSIGNED else (-1.0, -0.3, 0.0, 0.3, 1.0)
    for strength in strengths:
        result = np.asarray(ALL[name](Image.fromarray(values), strength))
        assert result.dtype == np.uint8 and result.shape == values.shape
        expected = reference(name, values, strength, longest=0.4)
        # Pillow rounds gray values and products on its way
        rounded = 2 if name in SIGNED else 1 if name == "autocontrast" else 0
        assert np.abs(result.astype(float) - expected).max() <= rounded, strength


@pytest.mark.parametrize(
    "name", [name for name in ALL if name not in ("autocontrast", "equalize", "solarize")]
)
def test_no_strength_is_no_change(name: str) -> None:
    values = picture()
    assert np.array_equal(np.asarray(ALL[name](Image.fromarray(values), 0.0)), values)


@pytest.mark.parametrize("name", ALL)
def test_the_strongest_operation_changes_much(name: str) -> None:
    values = picture()
    difference = np.asarray(ALL[name](Image.fromarray(values), 1.0)).astype(float) - values
    assert math.sqrt((difference**2).mean()) > 3


def test_both_signs_and_all_names_are_drawn_alike() -> None:
    torch.manual_seed(0)
    values = Image.fromarray(picture())
    bright = [np.asarray(changed(values, SIGNED, "brightness", 0.5)).mean() for _ in range(400)]
    assert 150 < sum(each > 120 for each in bright) < 250
    names = [drawn_name(ALL) for _ in range(1300)]
    assert all(60 < names.count(name) < 140 for name in ALL)
