"""The machine that answers are planned for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.deliver import generation_memory
from snugfit.planner.devices.hardware import find_device


@pytest.mark.parametrize(("setting", "expandable"), [("expandable_segments:True", True), ("", False)])
def test_memory_is_planned_as_the_environment_sets_torchs_allocator(
    setting: str, expandable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = find_device("rtx4090")
    monkeypatch.setattr(generation_memory, "known_device", lambda kind: card)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", setting)
    machine = generation_memory._this_machine(torch.device("cuda"), nn.Linear(1, 1))
    assert (machine.type, machine.device, machine.expandable_segments) == ("cuda", card, expandable)
