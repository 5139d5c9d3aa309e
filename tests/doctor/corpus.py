"""The corpus: scripts with one planted fault each, and clean ones; how one is run, and what became of it.

A faulty script of our own is named after its pitfall, and marks the line that should be reported with `# <- here`. Those in `fresh` were written
after the detectors were frozen.

Those in `second_hand`, `third_hand` and `sixth_hand` to `seventeenth_hand` were written by somebody who had read no detector, those in `fourth_hand` and `fifth_hand` by the
writer of the detectors from reports of users. They are named after what they train; `expected.json` says which pitfalls name the fault, and
`SHA256SUMS` was written down before a detector saw them.

What the doctor made of each script lies in `results`, a file for each hand. `at_first`, before a detector was changed for it, a fault was `found` at a
marked line, found `elsewhere`, or `missed`, and a clean script `silent`, or an `alarm`. `now` is what has to come of it since, which a test
holds; there is none where nobody looks again. `near` are clean scripts that look as much like a fault as any to what was changed after them.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from snugfit.doctor.findings import Finding, is_ill
from snugfit.doctor.observe import observe
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.log import Log

HERE = Path(__file__).resolve().parent
MARK = "# <- here"
_FORKS_OR_MEETS = re.compile(r"\bnum_workers=(?!0\b)|\bmp\.spawn\(|\binit_process_group\(")

Rows = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Hand:
    """Scripts of one hand: planted faults, and clean ones that look like them.

    Args:
        name: of the folder that they lie in.
    """

    name: str

    @property
    def folder(self) -> Path:
        return HERE / self.name

    def scripts(self, kind: str) -> list[Path]:
        """Return those that are `faulty` or `clean`."""
        return scripts(f"{self.name}/{kind}")

    @cached_property
    def expected(self) -> dict[str, Rows]:
        """What they were written to show: by kind and script."""
        return json.loads((self.folder / "expected.json").read_text())

    @cached_property
    def results(self) -> dict[str, Rows]:
        """What the doctor made of them: by kind and script."""
        return json.loads((HERE / "results" / f"{self.name}.json").read_text())

    def at_first(self, kind: str, outcome: str) -> list[str]:
        """Return the names of scripts of which this came at first."""
        return [name for name, row in self.results[kind].items() if row["at_first"] == outcome]

    def held(self, kind: str) -> list[Path]:
        """Return the scripts of which a test holds what comes of them now."""
        return [each for each in self.scripts(kind) if "now" in self.results[kind][each.stem]]

    def changed(self, kind: str) -> list[Path]:
        """Return those of them for which something was changed after them."""
        rows = self.results[kind]
        return [
            each
            for each in self.held(kind)
            if rows[each.stem]["at_first"] != rows[each.stem]["now"] or "near" in rows[each.stem]
        ]

    def pitfalls(self, script: Path) -> list[str]:
        """Return the names of a planted fault, each of which is right, that which it has got since among them."""
        row = self.results["faulty"].get(script.stem, {})
        names = self.expected["faulty"].get(script.stem, {}).get("pitfalls", ())
        return [*names, *filter(None, [row.get("named")])]

    def lines(self, script: Path) -> dict[str, list[tuple[int, int]]]:
        """Return the lines of a fault that are written down beside its script, by file: the first and the last of each place."""
        lines = self.expected["faulty"].get(script.stem, {}).get("lines", {})
        by_file = lines if isinstance(lines, dict) else {script.name: lines}
        return {file: [(first, last) for first, last in spans] for file, spans in by_file.items()}


HANDS = {
    name: Hand(f"{name}_hand")
    for name in (
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
    )
}
NEWEST = (HANDS["sixteenth"], HANDS["seventeenth"])

OWN: dict[str, Rows] = json.loads((HERE / "results/own.json").read_text())
"""What came of our own scripts: those in `fresh`, and in `faulty` those that are reported at another line than the marked one."""


def scripts(folder: str) -> list[Path]:
    """The scripts of `faulty`, `fresh` or `clean`, or of these two folders of another hand."""
    return sorted((HERE / folder).glob("*.py"))


def hand_of(script: Path) -> Hand | None:
    """The hand that wrote a script; None for our own."""
    return next((each for each in HANDS.values() if each.folder in script.parents), None)


def result_of(script: Path) -> dict[str, Any]:
    """What the doctor made of a script."""
    hand = hand_of(script)
    results = OWN if hand is None else hand.results
    return results.get(script.parent.name, {}).get(script.stem, {})


def rounds() -> str:
    """What came of each hand's scripts at first, as a table of Markdown."""
    lines = [
        "| round | faults | found at a marked line | at another line | clean scripts | with something certain or likely |",
        "|---|---|---|---|---|---|",
    ]
    for name, hand in HANDS.items():
        faults, clean = len(hand.scripts("faulty")), len(hand.scripts("clean"))
        found, at_others = (len(hand.at_first("faulty", each)) for each in ("found", "elsewhere"))
        alarms = len(hand.at_first("clean", "alarm"))
        share = f"{found} ({found / faults:.0%})"
        lines.append(f"| {name} | {faults} | {share} | {at_others} | {clean} | {alarms} |")
    return "\n".join(lines)


def missing_package(script: Path) -> str:
    """The package of `.[bench]` that the script imports and that is not installed; "" if there is none."""
    imported: set[str | None] = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    needed = any(str(name).partition(".")[0] == "lightning" for name in imported)
    return "lightning" if needed and importlib.util.find_spec("lightning") is None else ""


@dataclass(frozen=True)
class Case:
    """What the doctor says of one script."""

    script: Path
    findings: tuple[Finding, ...]
    complete: bool
    """Whether the script ran to its end."""
    failure: str
    """What the doctor itself failed with; "" if with nothing."""

    @property
    def pitfalls(self) -> list[str]:
        """The names of the planted fault, each of which is right; none of a clean script."""
        return planted_in(self.script)

    @property
    def marked(self) -> list[int]:
        """The lines that the script marks, or that are written down beside it, as those of hands since the tenth."""
        lines = self.script.read_text().splitlines()
        marked = [number for number, line in enumerate(lines, start=1) if MARK in line]
        hand = hand_of(self.script)
        if marked or hand is None:
            return marked
        spans = hand.lines(self.script).get(self.script.name, ())
        return [each for first, last in spans for each in range(first, last + 1)]

    @property
    def found(self) -> list[Finding]:
        """The findings of the planted fault."""
        return [finding for finding in self.findings if finding.pitfall in self.pitfalls]

    @property
    def alarms(self) -> list[Finding]:
        """What is said of a clean script as certain or likely, and is not true."""
        true = result_of(self.script).get("true", "").partition(":")[0]
        return [each for each in self.findings if is_ill([each]) and each.pitfall != true]

    @property
    def at_the_mark(self) -> bool:
        """Whether one of them names a marked line of the script."""
        places = {f"{self.script.name}:{number}" for number in self.marked}
        return any(Path(finding.where).name in places for finding in self.found)


def planted_in(script: Path) -> list[str]:
    """The names of the fault in a script; of our own the script is named after it."""
    hand = hand_of(script)
    return [script.stem.rpartition("_")[0]] if hand is None else hand.pitfalls(script)


def examine(script: Path) -> Case:
    """Run a script under observation: in this process, or in one of its own where it forks workers of a loader, spawns ranks or makes a process group.

    A fork of this process has the locks that another of its threads held, and none to let go of them: a worker may wait for ever.
    So may this process where a model in DistributedDataParallel is the last to hold its group: torch (2.13) then joins gloo's
    thread with the interpreter's lock held, and that thread may want the lock to let go of its last exchange.
    """
    if _FORKS_OR_MEETS.search(script.read_text()):
        seen = observe([sys.executable, str(script)])
        return Case(script, seen.findings, complete=seen.exit_code == 0, failure=seen.failure)
    log = _watched_here(script)
    return Case(script, diagnose([log]), complete=log.complete, failure=log.failure)


def _watched_here(script: Path) -> Log:
    """Undo what a script does to torch; modules of its own are forgotten, which would be the next one's."""
    namespaces = [(module, dict(vars(module))) for module in (distributed, torch.cpu)]
    try:
        return watch_script(script)
    finally:
        for module, names in namespaces:
            vars(module).update(names)
        torch.autograd.set_detect_anomaly(mode=False)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        for name, module in list(sys.modules.items()):
            if str(script.parent) in str(getattr(module, "__file__", None)):
                del sys.modules[name]
