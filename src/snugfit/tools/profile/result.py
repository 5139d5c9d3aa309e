"""The result of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snugfit.errors import SettingError
from snugfit.planner.answers.plan_figures import brief_seconds
from snugfit.planner.trace.memory_breakdown import MemoryUse
from snugfit.planner.trace.memory_snapshot import SNAPSHOT
from snugfit.results.shown import Shown
from snugfit.tools.profile.limits import Advice, Culprit, Occasional
from snugfit.tools.profile.operators import Operator

TRACE = "trace.json"
TABLE = "key_averages.txt"
TENSORBOARD = "tensorboard"
MOST_OPERATORS = 20
ORDERS = ("device", "host")


@dataclass(frozen=True)
class Detail:
    """The facts of operators that a profile shows beside their time.

    Args:
        shapes: of their inputs.
        stacks: the functions of the user's code that they come from.
        sort: by their time on the "device" or on the "host"; None for the device's where it has one of its own.
    """

    shapes: bool = False
    stacks: bool = False
    sort: str | None = None

    def sorted_by(self, device: str) -> str:
        """Return what operators are sorted by on a device, "device" or "host".

        Raises:
            SettingError: there is no such order there.
        """
        if self.sort not in (None, *ORDERS):
            raise SettingError(
                "sort", f"got {self.sort!r}, expected one of {', '.join(ORDERS)}", "Choose one of them."
            )
        if self.sort == "device" and device == "cpu":
            raise SettingError(
                "sort", "got device, and a CPU has no time beside the host's", "Leave it out, or write host."
            )
        return self.sort or ("host" if device == "cpu" else "device")


@dataclass(frozen=True, repr=False)
class Profile(Shown):
    """The time of an update of a setup, by parts.

    Args:
        phases: seconds of one update by phase, without the profiler; they add up to `seconds_per_update`.
        occasional: evaluation and save, where the run has them: seconds each time, and after how many updates.
        limits: seconds of an update by what limits them.
        share_of_peak: of the FLOPs that the device could compute in the time, in the numbers that are used.
        slowdown: by the profiler, of the updates from which the operators' shares come.
        sorted_by: the time that operators are listed by, "device" or "host".
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
    sorted_by: str = "host"
    memory: tuple[MemoryUse, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def by_host(self) -> bool:
        """Return whether operators are listed by the host's time although the device has one of its own."""
        return self.sorted_by == "host" and self.device["kind"] != "cpu"

    @property
    def listed(self) -> list[Operator]:
        """The operators that take most of the time that they are sorted by."""
        if self.by_host:
            return sorted(self.operators, key=lambda each: -each.host_seconds)[:MOST_OPERATORS]
        return list(self.operators[:MOST_OPERATORS])

    def summary_lines(self) -> list[str]:
        """Return the verdict, and the phases of an update with their shares."""
        whole = self.seconds_per_update or 1.0
        phases = sorted(self.phases.items(), key=lambda each: -each[1])
        lines = [
            f"  {name:<12} {100 * seconds / whole:3.0f}%  {brief_seconds(seconds)}"
            for name, seconds in phases
        ]
        return [f"Profile: {self.verdict}", *lines[:8], f"  page         {self.folder}"]

    def page(self) -> str:
        from snugfit.tools.profile.page import render_profile  # which is of this

        return render_profile(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; the table is a file of the folder."""
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
            "sorted_by": self.sorted_by,
            "operators": [_operator(each) for each in self.listed],
            "advice": [each.as_dict() for each in self.advice],
            "memory": {each.basis: each.as_dict() for each in self.memory},
            "notes": list(self.notes),
            **{name: str(path) for name, path in paths.items() if path.exists()},
            "folder": str(self.folder),
        }


def _operator(each: Operator) -> dict[str, Any]:
    """Return plain values of an operator, with its shapes and its line where these were asked for."""
    names = ("name", "seconds", "host_seconds", "calls", "phase", "module", "module_share")
    plain = {name: getattr(each, name) for name in names}
    asked = {name: getattr(each, name) for name in ("shapes", "line") if getattr(each, name)}
    return {**plain, "flops": each.work.flops, **asked}
