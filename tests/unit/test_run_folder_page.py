"""The page of a run's folder names every file, event and exit code that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import snugfit
from snugfit.run.events import DOING
from snugfit.run.time_limit import TIME

SOURCE = Path(snugfit.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "run_folder.md").read_text(encoding="utf-8")
_EMITTED = re.compile(r'(?:\bemit|\bevents|_events|_emit)\(\s*"([a-z_]+)"')
TRACKERS = ("tracking", "tensorboard", "wandb", "trackio")
UNSAID = (*(f"{name}.lock" for name in TRACKERS), "found.json")
"""Files that are of use to Snugfit alone, or lie elsewhere."""


def events() -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in (SOURCE / "run").rglob("*.py")]
    kinds = {kind for text in texts for kind in _EMITTED.findall(text)}
    return sorted({*kinds, TIME} - {DOING})  # which is shown, and not written


def files() -> list[str]:
    text = (SOURCE / "results" / "run_folder.py").read_text(encoding="utf-8")
    named = re.findall(r'"([\w.*-]+)"', text[text.index('RECIPE = "') : text.index('"""What Snugfit writes')])
    folders = re.findall(r'return self\.path / "(\w+)"', text)
    return sorted({*named, *folders, "events.jsonl"} - {*UNSAID})


def test_what_is_looked_for_is_there() -> None:
    assert {"run", "update", "evaluation", "checkpoint", "skipped", "end", "warning", "replan", "fit"} <= {
        *events()
    }
    assert {"best", "models", "checkpoints", "recipe.yaml", "fold-*"} <= {*files()}


@pytest.mark.parametrize("event", events())
def test_every_event_stands_on_the_page(event: str) -> None:
    table = PAGE[PAGE.index("## Events") : PAGE.index("## How a command ends")]
    assert re.search(rf"^\|[^|]*`{event}`[^|]*\|", table, re.MULTILINE)


@pytest.mark.parametrize("name", files())
def test_every_file_stands_on_the_page(name: str) -> None:
    files_of_page = PAGE[: PAGE.index("## Events")]
    assert f"`{name.replace('*', '…')}" in files_of_page


def test_every_exit_code_stands_on_the_page() -> None:
    first = (SOURCE / "cli" / "app.py").read_text(encoding="utf-8").split('"""')[1]
    codes = re.findall(r"\b(\d+) [a-z]", first)
    assert len(codes) == 5 and all(f"| {code} |" in PAGE for code in codes)
