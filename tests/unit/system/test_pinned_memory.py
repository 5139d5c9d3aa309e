"""Pinned memory: what the CUDA runtime is asked for, with one that keeps a list."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch

from snugfit.errors import SettingError
from snugfit.system.device_copies import pin_memory


class Owner:
    """What the memory belongs to."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    calls: list[tuple[str, ...]] = []
    runtime = SimpleNamespace(
        cudaHostRegister=lambda *args: calls.append(("pin", *map(str, args))) or 0,
        cudaHostUnregister=lambda *args: calls.append(("unpin", *map(str, args))) or 0,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    return calls


def test_memory_is_pinned_as_it_is_for_as_long_as_its_owner_lives(asked: list[tuple[str, ...]]) -> None:
    memory, owner = torch.empty(430, dtype=torch.float32), Owner()
    pin_memory(memory, owner, "checkpoint.save", "wait")
    place = str(memory.data_ptr())
    assert asked == [("pin", place, "1720", "0")]
    del owner
    gc.collect()
    assert asked[1:] == [("unpin", place)]


def test_what_the_system_does_not_allow_is_refused_with_the_setting_that_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = SimpleNamespace(cudaHostRegister=lambda *args: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    with pytest.raises(
        SettingError,
        match=r"^checkpoint.save: 4\.00 KiB of host memory cannot be pinned \(CUDA error 2\)\. .*ulimit -l.*, or wait\.",
    ):
        pin_memory(torch.empty(1024), Owner(), "checkpoint.save", "wait")
