"""The results of a call: one JSON a command, written anew whenever a check begins or ends, so that a call that is killed has left all it did."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import CUT_OFF, DEVICE, GREEN, PASSED, Check, write_json


@dataclass
class Results:
    """Checks of each command and how they ended, in files.

    Args:
        folders: each gets the files.
        head: what is said of the whole call in each file: machine, versions, date, commit.
        began: the moment of `time.monotonic` from which seconds count.
        device: the card's name, once it has been looked at: results of several calls may be those of several cards.
    """

    folders: Sequence[Path]
    head: dict[str, Any]
    began: float
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    device: str = ""

    def take_over(
        self, checks: Sequence[Check], passed: Mapping[str, Mapping[str, Any]], shared: Path
    ) -> None:
        """Take over what passed in an earlier call; what is not asked for again stays too.

        Args:
            passed: rows by command and name.
            shared: the folder of all checks.
        """
        asked = {(each.command, each.name): each for each in checks}
        for command in dict.fromkeys(each.command for each in checks):
            rows = {
                name: {**row, "earlier": True}
                for name, row in passed.get(command, {}).items()
                if (command, name) not in asked or asked[command, name].is_done(passed[command], shared)
            }
            self.commands[command] = {"command": command, **self.head, "checks": rows}
            self.write(command)

    def row(self, check: Check) -> dict[str, Any] | None:
        """Return how a check ended; None where it has not begun."""
        return self.commands[check.command]["checks"].get(check.name)

    def put(self, check: Check, row: Mapping[str, Any]) -> None:
        """Write down how a check ended, or that it has begun."""
        about = {name: self.head[name] for name in ("date", "commit", "diff")}
        if check.name == DEVICE:
            self.device = row["figures"].get("name", "")
        self.commands[check.command]["checks"][check.name] = {**row, **about, "device": self.device}
        self.write(check.command)

    def finish(self) -> dict[str, Any]:
        """Write what is known at the end, and return the summary of all commands."""
        for command, result in self.commands.items():
            result |= self.head
            self.write(command)
        every = {
            f"{c}: {name}": row
            for c, result in self.commands.items()
            for name, row in result["checks"].items()
        }
        return summary(every)

    def write(self, command: str) -> None:
        result = self.commands[command]
        result["wall_seconds"] = round(time.monotonic() - self.began, 1)
        result["summary"] = summary(result["checks"])
        for folder in self.folders:
            write_json(folder / f"{command}.json", result)


def earlier(folders: Sequence[Path], commands: Sequence[str], toy: bool) -> dict[str, dict[str, Any]]:
    """Return the rows that passed in earlier calls, by command and name; of two folders the last one's. Tiny ones prove nothing whole."""
    passed: dict[str, dict[str, Any]] = {command: {} for command in commands}
    for command in commands:
        for path in (folder / f"{command}.json" for folder in folders):
            result = json.loads(path.read_text()) if path.exists() else {"checks": {}}
            if result.get("toy", toy) == toy:
                rows = result["checks"].items()
                passed[command] |= {name: row for name, row in rows if row["status"] == PASSED}
    return passed


def summary(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Count how the checks ended; `green` where none failed and none was left."""
    counts: dict[str, int] = {}
    for row in rows.values():
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    red = [name for name, row in rows.items() if row["status"] not in GREEN]
    return {**counts, "red": red, "green": not red and counts.get(PASSED, 0) > 0}


def begun(seconds: float, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a check that runs: what stays of it if the call is killed."""
    reason = "the call ended while it ran"
    return {"status": CUT_OFF, "reason": reason, "seconds": round(seconds, 1), "figures": dict(figures)}
