"""What a profile has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snugfit.tools.limits import Advice, Culprit, Occasional
from snugfit.tools.memory import MemoryUse
from snugfit.tools.operators import Operator
from snugfit.tools.snapshot import SNAPSHOT

TRACE = "trace.json"
TABLE = "key_averages.txt"
TENSORBOARD = "tensorboard"


@dataclass(frozen=True)
class Profile:
    """What an update of a setup spends its time on.

    Args:
        phases: seconds of one update by phase, without the profiler; they add up to `seconds_per_update`.
        occasional: evaluation and save, where the run has them: seconds each time, and after how many updates.
        limits: seconds of an update by what limits them.
        share_of_peak: of the FLOPs that the device could compute in the time, in the numbers that are used.
        slowdown: by the profiler, of the updates from which the operators' shares come.
        memory: measured, and what the planner predicts where it can; empty where it was not asked for.
    """

    name: str
    device: Mapping[str, Any]
    updates: int
    rows: int
    micro_batch: int
    seconds_per_update: float
    examples_per_second: float
    phases: Mapping[str, float]
    occasional: Mapping[str, Occasional]
    limits: Mapping[str, float]
    limit: str
    verdict: str
    culprits: tuple[Culprit, ...]
    advice: tuple[Advice, ...]
    operators: tuple[Operator, ...] = field(repr=False)
    flops_per_update: int
    share_of_peak: float
    slowdown: float
    table: str = field(repr=False)
    folder: Path
    memory: tuple[MemoryUse, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the table is a file of the folder."""
        files = {"trace": TRACE, "table": TABLE, "tensorboard": TENSORBOARD, "snapshot": SNAPSHOT}
        paths = {name: self.folder / file for name, file in files.items()}
        plain = (
            "name",
            "updates",
            "rows",
            "micro_batch",
            "seconds_per_update",
            "examples_per_second",
            "limit",
        )
        more = ("verdict", "flops_per_update", "share_of_peak", "slowdown")
        return {
            **{name: getattr(self, name) for name in (*plain, *more)},
            "device": dict(self.device),
            "phases": dict(self.phases),
            "occasional": {name: vars(each) for name, each in self.occasional.items()},
            "limits": dict(self.limits),
            "culprits": [vars(each) for each in self.culprits],
            "advice": [each.as_dict() for each in self.advice],
            "memory": {each.basis: each.as_dict() for each in self.memory},
            "notes": list(self.notes),
            **{name: str(path) for name, path in paths.items() if path.exists()},
            "folder": str(self.folder),
        }
