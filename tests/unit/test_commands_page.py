"""The page of commands is made of their declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import commands
from scripts.commands import PAGE, render


def test_the_page_is_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m scripts.commands"


def test_a_page_that_is_current_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "commands.md"
    monkeypatch.setattr(commands, "PAGE", page)
    commands.write_page()
    assert page.read_text(encoding="utf-8") == render()
    before = page.stat().st_mtime_ns
    commands.write_page()
    assert page.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "line",
    [
        "## `snugfit find lr`",
        "snugfit predict SOURCE DATA [OPTIONS]",
        "| `--num-beams N` | Of a model that writes: texts gone on with at once, of which the likeliest is taken. Default: 1. |",
        "Example: `snugfit runs --sort accuracy`",
    ],
)
def test_commands_are_told_with_their_options_and_an_example(line: str) -> None:
    assert line in render().splitlines()
