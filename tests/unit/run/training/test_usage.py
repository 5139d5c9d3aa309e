"""The use of the machine, as trackers show it."""

from __future__ import annotations

import pytest
import torch

from snugfit.run.training.update_events import Usage


class NotSupported(Exception):
    """As `pynvml.NVMLError_NotSupported`, which a part of a GPU raises: its base is `Exception`."""


def test_a_gpu_that_has_no_utilization_is_asked_once_and_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def utilization(device: torch.device) -> int:
        asked.append(device)
        raise NotSupported

    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 7)
    usage = Usage(torch.device("cuda"))
    for _ in range(2):
        figures = usage.figures()
        assert figures["device_bytes"] == 7 and "device_percent" not in figures
    assert len(asked) == 1


def test_a_processor_has_figures_of_itself_alone() -> None:
    figures = Usage(torch.device("cpu")).figures()
    assert {"cpu_percent", "memory_bytes"} <= figures.keys() <= {"cpu_percent", "memory_bytes", "free_bytes"}
    assert figures["memory_bytes"] > 0
