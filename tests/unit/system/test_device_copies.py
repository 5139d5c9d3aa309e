"""What is copied to a device while the host goes on must be there until the device has read it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

import snugfit
from snugfit.core.batch import Batch
from snugfit.core.tree import select_packed
from snugfit.kit.mixing import on_device_of
from snugfit.system import device_copies
from snugfit.system.device_copies import scalar_like

PACKAGE = Path(snugfit.__file__).parent
CUDA_ALONE = "on CUDA alone, whose allocators keep what is copied"
PLACES = {
    "system/device_copies.py": "the way to a device, which knows where it has to wait",
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
    assert seen == set(PLACES), "use to_device (system/device_copies.py), or say here why it is safe"


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


WAITING = {
    "step/evaluate.py:_of_sources": "between updates",
    "strategies/gathers.py:agree": "in the first updates, until ranks have agreed",
    "techniques/learning/class_weights.py:_by_class": "at first",
    "techniques/learning/focal.py:seams": "at first",
    "techniques/placement/packing.py:_apart": "in the check of the first window",
}
"""Functions that make a tensor of numbers where a device is, which waits until that has done all it was asked for; why they may."""


def test_an_update_gives_a_device_numbers_without_waiting_for_it() -> None:
    seen = set()
    for folder in ("core", "kit", "step", "strategies", "techniques"):
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            functions = [
                each
                for each in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(each, ast.FunctionDef)
            ]
            seen |= {f"{name}:{each.name}" for each in functions if any(map(makes_on_device, ast.walk(each)))}
    assert seen == set(WAITING), (
        "use values_on or scalar_like (system/device_copies.py), or say here why it may wait"
    )


def makes_on_device(node: ast.AST) -> bool:
    """Whether an expression makes a tensor of numbers of the host on a device."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    named = ast.unparse(node.func) in ("torch.tensor", "torch.as_tensor")
    elsewhere = any(each.arg == "device" and ast.unparse(each.value) != "'cpu'" for each in node.keywords)
    return (named and elsewhere) or node.func.attr == "new_tensor"


def test_rows_that_are_picked_wait_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_copies, "COPIES_BESIDE", ("cpu",)
    )  # which stands for one that copies meanwhile
    texts = [torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4])]
    packed = pack_sequence(texts, enforce_sorted=False)
    to, beside = Tensor.to, []

    def seen(self: Tensor, *args: Any, non_blocking: bool = False, **more: Any) -> Tensor:
        beside.append(non_blocking)
        return to(self, *args, **more)

    monkeypatch.setattr(Tensor, "to", seen)
    Batch.of({"x": torch.ones(4, 2)}).select([2, 0])
    assert beside == [True]
    select_packed(packed, [2, 1])
    assert beside == [True] * 4


def test_a_scalar_is_of_the_device_and_the_type_that_are_asked_for() -> None:
    like = torch.ones(3, dtype=torch.bfloat16, device="meta")
    for number in (2.0, torch.tensor(2.0)):
        made = scalar_like(number, like)
        assert (made.device, made.dtype, made.shape) == (like.device, like.dtype, ())
