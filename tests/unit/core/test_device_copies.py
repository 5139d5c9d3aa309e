"""What is copied to a device while the host goes on must be there until the device has read it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import snugfit
from snugfit.core.batch import Batch
from snugfit.kit.mixing import on_device_of

PACKAGE = Path(snugfit.__file__).parent
CUDA_ALONE = "on CUDA alone, whose allocators keep what is copied"
PLACES = {
    "core/device_copies.py": "the way to a device, which knows where it has to wait",
    "core/gradients.py": CUDA_ALONE,
    "core/scalar_reads.py": "to the host, from devices of COPIES_BESIDE",
    "kit/streaming/slot.py": CUDA_ALONE,
    "planner/calibration/calibrate.py": CUDA_ALONE,
    "run/checkpoint/host_copy.py": "to memory that stays, and all of it is waited for",
    "techniques/placement/activation_offload.py": "on a stream, which devices of ASYNCHRONOUS have",
    "techniques/placement/optimizer_offload.py": "not where host and device are one memory",
}
"""Files with copies that the host does not wait for, each with why what they read is there meanwhile."""


def test_each_copy_that_nobody_waits_for_is_known_to_be_safe() -> None:
    seen = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "non_blocking" in text and "doctor" not in path.parts:
            calls = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call)]
            if any(each.arg == "non_blocking" for call in calls for each in call.keywords):
                seen.add(path.relative_to(PACKAGE).as_posix())
    assert seen == set(PLACES), "use to_device (core/device_copies.py), or say here why it is safe"


@pytest.mark.parametrize(("kind", "beside"), [("mps", False), ("cuda", True)])
def test_a_batch_and_what_is_drawn_for_it_are_waited_for_where_the_device_would_read_what_is_gone(
    kind: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Any] = []

    def to(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        copies.append((device.type, non_blocking))
        return torch.empty_like(tensor, device="meta")

    monkeypatch.setattr(Tensor, "to", to)
    Batch.of({"x": torch.ones(2, 3), "labels": torch.zeros(2)}).to(torch.device(kind))
    assert copies == [(kind, beside)] * 2
    on_device_of(Batch.of({"x": torch.ones(2, device="meta")}), torch.ones(2))
    assert copies[2:] == [("meta", False)]
