"""The corpus: scripts with one planted fault each, and clean ones; how one is run, and what became of it.

A faulty script is named after its pitfall, and marks the line that should be reported with `# <- here`. Those in
`fresh` were written after the detectors were frozen; what the frozen ones missed is kept in `MISSED_AT_FIRST`.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import distributed

from snugfit.doctor.findings import Finding
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.log import Log

HERE = Path(__file__).resolve().parent
MARK = "# <- here"

MISSED_AT_FIRST = {
    "averaged_not_saved_2": "an average that load_state_dict puts in looked like a checkpoint that is restored",
    "clip_before_unscale_3": "gradients are scaled by hand, not by torch.nn.utils",
    "imbalance_2": "labels of a binary loss were not counted",
    "not_in_optimizer_3": "parameters in a plain list are in no named_parameters()",
    "starving_2": "a new iterator has only a first batch, whose wait was taken for the start of the workers",
    "train_mode_4": "scored by a threshold: neither a loader, a loss nor an argmax shows that this is an evaluation",
}
"""Faults of `fresh` that the frozen detectors did not find, and why."""

AT_ANOTHER_LINE = {
    "clip_before_unscale_3": "reported where the scaler unscales what was changed; what changed it is not watched",
    "special_tokens_2": "reported where forward() calls the embedding, not where the script calls the model",
}
"""Faults that are found, and reported at another line than the marked one."""


def scripts(folder: str) -> list[Path]:
    """The scripts of `faulty`, `fresh` or `clean`."""
    return sorted((HERE / folder).glob("*.py"))


def missing_package(script: Path) -> str:
    """A package that the script needs and that is not installed; "" if all are there."""
    needs = [name for name in ("accelerate", "lightning") if f"from {name} import" in script.read_text()]
    return next((name for name in needs if importlib.util.find_spec(name) is None), "")


@dataclass(frozen=True)
class Case:
    """What the doctor says of one script."""

    script: Path
    log: Log
    findings: tuple[Finding, ...]

    @property
    def pitfall(self) -> str:
        """The planted fault."""
        return self.script.stem.rpartition("_")[0]

    @property
    def marked(self) -> list[int]:
        """The lines that the script marks."""
        lines = self.script.read_text().splitlines()
        return [number for number, line in enumerate(lines, start=1) if MARK in line]

    @property
    def found(self) -> list[Finding]:
        """The findings of the planted fault."""
        return [finding for finding in self.findings if finding.pitfall == self.pitfall]

    @property
    def at_the_mark(self) -> bool:
        """Whether one of them names a marked line of the script."""
        places = {f"{self.script.name}:{number}" for number in self.marked}
        return any(Path(finding.where).name in places for finding in self.found)


def examine(script: Path) -> Case:
    """Run a script in this process under observation, and undo what it did to torch."""
    namespaces = [(module, dict(vars(module))) for module in (distributed, torch.cpu)]
    try:
        log = watch_script(script)
    finally:
        for module, names in namespaces:
            vars(module).update(names)
        torch.autograd.set_detect_anomaly(mode=False)
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return Case(script, log, diagnose([log]))
