"""`plan.deterministic` in what is done around a run: each tool computes by the operators that the run would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import snugfit as sf
from tests.unit.run.training.runs import points, small_model

MODES: list[int] = []
"""How torch chooses operators in each forward; tools train copies of a model, which share this."""


class Watching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small_model()

    def forward(self, rows: Tensor) -> Tensor:
        MODES.append(torch.get_deterministic_debug_mode())
        logits: Tensor = self.body(rows)
        return logits


TOOLS: dict[str, Callable[..., Any]] = {
    "find_lr": lambda *given, **more: sf.find_lr(*given, updates=3, **more),
    "find_lr, which finds its micro-batch first": lambda *given, **more: sf.find_lr(
        *given, updates=3, **{**more, "micro_batch": "auto"}
    ),
    "find_batch": lambda *given, **more: sf.find_batch(*given, **more),
    "profile": lambda *given, **more: sf.profile(*given, steps=1, **more),
    "certify": lambda *given, **more: sf.certify(*given, **more),
    "examine": lambda *given, **more: sf.examine(*given, **more),
}


@pytest.mark.parametrize("asked", [True, False], ids=["deterministic", "as it comes"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_computes_by_the_operators_of_the_run(tool: str, asked: bool, tmp_path: Path) -> None:
    MODES.clear()
    more = {"output": tmp_path} if tool == "profile" else {}
    TOOLS[tool](
        Watching(),
        points(32),
        optimizer=sf.SGD(learning_rate=0.1),
        global_batch=8,
        micro_batch=4,
        deterministic=asked,
        **more,
    )
    assert set(MODES) == {2 if asked else 0}
    assert torch.get_deterministic_debug_mode() == 0
