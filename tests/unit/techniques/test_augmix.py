from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from snugfit.techniques.learning.augmix import ALL, OF_PAPER, AugMix, augmixed
from tests.unit.kit.pictures.picture_formulas import reference
from tests.unit.techniques.settings import refuses

PAPER = [
    "shear_x",
    "shear_y",
    "rotate",
    "translate_x",
    "translate_y",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
]


@pytest.mark.parametrize(
    ("setting", "value"), [("severity", 0), ("severity", 10.5), ("width", 0), ("depth", 0), ("alpha", 0)]
)
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(AugMix, **{setting: value})


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(120, 40, (11, 14, 3)).clip(0, 255).astype(np.uint8)


def drawn_shares(alpha: float, parts: int) -> np.ndarray:
    return np.random.default_rng(int(torch.randint(2**31, ()))).dirichlet([alpha] * parts)


def test_a_picture_is_mixed_with_chains_of_changes_of_it() -> None:
    """Hendrycks et al. 2019, algorithm 1: `m x + (1 − m) Σ w_i chain_i(x)`."""
    assert list(OF_PAPER) == PAPER and len(ALL) == 13
    for seed in range(15):
        torch.manual_seed(seed)
        result = np.asarray(augmixed(Image.fromarray(picture(seed)), severity=4, width=2, alpha=1.0))
        torch.manual_seed(seed)
        shares, own = drawn_shares(1.0, 2), drawn_shares(1.0, 2)[0]
        expected = own * picture(seed).astype(float)
        for share in shares:
            chained = picture(seed)
            for _ in range(1 + int(torch.randint(3, ()))):
                name = PAPER[int(torch.randint(9, ()))]
                strength = (0.1 + 3.9 * float(torch.rand(()))) / 10
                if name not in ("posterize", "solarize", "autocontrast", "equalize"):
                    strength *= 1 if int(torch.randint(2, ())) else -1
                chained = np.rint(reference(name, chained, strength, longest=1 / 3)).astype(np.uint8)
            expected += (1 - own) * share * chained
        assert np.mean(np.abs(result - expected) > 1.5) < 0.03, seed


def test_one_chain_of_one_operation_is_a_line_between_the_picture_and_that() -> None:
    values = picture(0)
    torch.manual_seed(1)
    shares = set()
    for _ in range(20):
        result = np.asarray(augmixed(Image.fromarray(values), severity=10, width=1, depth=1))
        shares.add(result.tobytes())
    assert len(shares) > 15


def test_brightness_is_left_to_the_test_unless_all_operations_are_asked_for() -> None:
    """ImageNet-C tests for it: the paper does not train on it. Of a flat picture only colours can be changed."""
    flat = Image.fromarray(np.full((8, 8, 3), (50, 90, 200), dtype=np.uint8))
    torch.manual_seed(0)
    kinds = {"all": True, "paper": False}
    middles = {
        kind: [
            np.asarray(augmixed(flat, severity=3, width=1, depth=1, all_operations=given))[4, 4].sum()
            for _ in range(60)
        ]
        for kind, given in kinds.items()
    }
    brighter = {kind: sum(each > 350 for each in values) for kind, values in middles.items()}
    assert brighter["paper"] == 0 < brighter["all"]


def test_a_gray_picture_stays_gray() -> None:
    gray = Image.fromarray(picture(0)[..., 0])
    torch.manual_seed(0)
    assert all(augmixed(gray, all_operations=True).mode == "L" for _ in range(5))
