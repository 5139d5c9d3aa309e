"""Completion in shells: what is offered for half a word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from snugfit.cli.common import completion
from snugfit.planner.devices.data_sheets import SHEETS
from snugfit.recipe.presets import presets
from snugfit.techniques import discover


def completed(words: str) -> list[str]:
    """Return what bash would offer for the last word."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "_SNUGFIT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "snugfit"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("snugfit cert", ["certify"]),
        ("snugfit techniques weight_str", ["weight_streaming"]),
        ("snugfit recipe early_stopping.p", ["early_stopping.patience"]),
        ("snugfit train r.yaml train.ep", ["train.epochs="]),
        ("snugfit plan r.yaml --device rtx40", [name for name in sorted(SHEETS) if name.startswith("rtx40")]),
    ],
)
def test_a_shell_is_offered_what_begins_so(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


def test_all_techniques_are_offered_without_being_imported() -> None:
    assert set(completion.techniques("")) == {*discover(), *presets()}
