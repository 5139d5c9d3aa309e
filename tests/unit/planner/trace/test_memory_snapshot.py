"""The record of a CUDA allocator: torch's functions are where they were, and what they write is what its viewer reads."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path

import pytest
import torch

from snugfit.planner.trace.memory_snapshot import SNAPSHOT, snapshot


def test_torchs_functions_are_where_they_were() -> None:
    record = inspect.signature(torch.cuda.memory._record_memory_history)
    dump = inspect.signature(torch.cuda.memory._dump_snapshot)
    assert "enabled" in record.parameters and "filename" in dump.parameters
    implementation = inspect.signature(torch.cuda.memory._record_memory_history_impl)
    assert "max_entries" in implementation.parameters


def test_on_a_cpu_nothing_is_recorded(tmp_path: Path) -> None:
    with snapshot(torch.device("cpu"), tmp_path) as path:
        assert path is None
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_the_allocators_record_names_each_allocation(tmp_path: Path) -> None:
    device = torch.device("cuda")
    kept = []

    def fail() -> None:
        with snapshot(device, tmp_path):
            kept.append(torch.ones(1 << 20, device=device))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    found = pickle.loads((tmp_path / SNAPSHOT).read_bytes())
    assert {"segments", "device_traces"} <= set(found)
    sizes = {entry["size"] for entry in found["device_traces"][0] if entry["action"] == "alloc"}
    assert kept[0].nbytes in sizes
