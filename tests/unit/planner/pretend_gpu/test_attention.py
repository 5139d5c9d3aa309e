"""The kernel that torch picks for attention, by the rules in its source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from snugfit.planner.pretend_gpu.attention import Attention

HALF, BF16, SINGLE = torch.float16, torch.bfloat16, torch.float32
MASK = torch.empty(1, 1, 32, 32, dtype=torch.bool, device="meta")


def kernel(
    capability: tuple[int, int],
    dtype: torch.dtype = HALF,
    dim: int = 64,
    heads: tuple[int, int] = (4, 4),
    tokens: tuple[int, int] = (32, 32),
    **settings: Any,
) -> str:
    query = torch.empty(
        2, heads[0], tokens[0], dim, dtype=dtype, device="meta", requires_grad=settings.pop("trains", True)
    )
    key = torch.empty(2, heads[1], tokens[1], dim, dtype=dtype, device="meta")
    call = {"mask": None, "dropout": 0.0, "is_causal": False, "grouped": False, **settings}
    return Attention(query, key, key, capability=capability, **call).kernel().name.split("_")[0].lower()


@pytest.mark.parametrize(
    ("capability", "settings", "expected"),
    [
        ((7, 5), {}, "efficient"),  # FlashAttention-2 begins with Ampere
        ((7, 5), {"dtype": BF16}, "math"),
        ((8, 0), {}, "flash"),
        ((8, 0), {"dtype": SINGLE}, "efficient"),
        ((8, 0), {"dtype": torch.float64}, "math"),
        ((8, 0), {"mask": MASK}, "efficient"),
        ((8, 0), {"dim": 256}, "flash"),
        ((8, 0), {"dim": 264}, "efficient"),
        ((8, 0), {"dim": 260}, "math"),  # rows of 16 bytes each
        ((8, 6), {"dim": 256}, "flash"),  # without dropout its backward fits
        ((8, 6), {"dim": 256, "dropout": 0.5}, "efficient"),
        ((8, 6), {"dim": 256, "dropout": 0.5, "trains": False}, "flash"),
        ((8, 9), {"dim": 208}, "efficient"),
        ((8, 0), {"tokens": (16, 32), "is_causal": True}, "efficient"),
        ((8, 0), {"tokens": (16, 32)}, "flash"),
        ((8, 0), {"heads": (4, 2), "grouped": True}, "flash"),
        ((8, 0), {"heads": (4, 2), "grouped": True, "mask": MASK}, "math"),
        ((9, 0), {}, "cudnn"),  # first on Hopper
        ((9, 0), {"mask": MASK}, "cudnn"),
        ((9, 0), {"dropout": 0.1}, "flash"),  # no multiple of 1/16
        ((9, 0), {"dropout": 0.125}, "cudnn"),
        ((9, 0), {"dim": 192}, "flash"),
        ((9, 0), {"dtype": SINGLE}, "efficient"),
        ((12, 0), {}, "flash"),
        ((13, 0), {}, "math"),
    ],
)
def test_a_device_picks_the_first_kernel_that_can(
    capability: tuple[int, int], settings: dict[str, Any], expected: str
) -> None:
    assert kernel(capability, **settings) == expected


def test_kernels_that_are_switched_off_are_not_picked() -> None:
    with sdpa_kernel([SDPBackend.MATH]):
        assert kernel((8, 0)) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert kernel((9, 0)) == "efficient"
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        assert kernel((8, 0), mask=MASK) == "error"


def test_an_order_that_was_set_is_kept() -> None:
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert kernel((8, 0)) == kernel((9, 0)) == "efficient"


def test_hopper_takes_cudnn_last_where_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert kernel((9, 0)) == "flash"


def test_deterministic_algorithms_leave_cudnn_out() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert kernel((9, 0)) == "flash"
    finally:
        torch.use_deterministic_algorithms(False)


def test_rows_that_are_not_contiguous_go_to_math() -> None:
    query = torch.empty(2, 4, 64, 32, dtype=HALF, device="meta").transpose(2, 3)
    assert Attention(query, query, query, None, 0.0, False, False, (8, 0)).kernel() is SDPBackend.MATH
