"""Plans to export, and what tests of exports ask of the files."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import torch
import yaml
from torch import nn

from snugfit.core.schedule import Schedule
from snugfit.planner.export import Entry, Exported, ExportedPlan
from snugfit.techniques import discover, find

PLAN = ExportedPlan(micro_batch=4, global_batch=32, total_updates=100, optimizer="adamw", device="cpu")
NOTHING = replace(PLAN, optimizer="madgrad", micro_batch=32)
"""No tool has its optimizer, and it asks for nothing else."""
STRATEGIES = (
    {"strategy": "single"},
    {"strategy": "fsdp", "devices": 2, "micro_batch": 16},
    {"strategy": "fsdp-zero2", "devices": 2, "micro_batch": 16},
)


def slot(name: str) -> str:
    card = discover()[name].card
    if card.precision:
        return "numerics"
    return next((seam for seam in ("optimizer", "schedule") if seam in card.seams), "techniques")


def asking(plan: ExportedPlan, entry: Entry) -> ExportedPlan:
    """The plan with one technique more, where a recipe would name it."""
    key = slot(entry if isinstance(entry, str) else next(iter(entry)))
    return replace(plan, **{key: (entry,) if key == "techniques" else entry})


def file(exported: Exported, name: str) -> str:
    return dict(exported.files)[name]


def carried(exported: Exported) -> list[Any]:
    """What the files set: all but comments and the list of what is left out."""
    found: list[Any] = []
    for name, text in exported.files:
        if name.endswith(".json"):
            found.append(json.loads(text))
        elif name.endswith(".yaml"):
            found.append(yaml.safe_load(text))
        elif name.endswith(".py"):
            found.append(ast.dump(ast.parse(text)))
    return found


def about(exported: Exported, name: str) -> list[str]:
    return [line for line in exported.left_out if line.startswith((f"{name} ", f"{name}:", f"{name}."))]


def factors(schedule: Any, optimizer: torch.optim.Optimizer, updates: int) -> list[float]:
    """The factor of each update, as a run would have it: an update, then the schedule's step."""
    found = []
    for _ in range(updates):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def ours(entry: Entry, updates: int) -> list[float]:
    name, settings = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
    schedule = find(name)(**(settings or {}))
    assert isinstance(schedule, Schedule)
    return [schedule.factor(update, updates) for update in range(updates)]


class Rows(nn.Module):
    """Notes how many rows each forward sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen: list[int] = []

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(len(inputs))
        return {"loss": nn.functional.cross_entropy(self.layer(inputs), labels)}


def rows(number: int) -> list[dict[str, torch.Tensor]]:
    return [{"inputs": torch.randn(2), "labels": torch.tensor(0)} for _ in range(number)]
