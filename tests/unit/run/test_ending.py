"""What is done when a run has ended never hides how it ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snugfit.errors import RunFolderError
from snugfit.report import chart_pictures
from snugfit.results.run_folder import RunFolder
from snugfit.run import ending
from snugfit.run.trackers import Tracking


@pytest.mark.parametrize("full", [False, True])
def test_charts_that_cannot_be_drawn_for_trackers_are_a_warning(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, dict[str, Any]]] = []

    def say(kind: str, **fields: Any) -> None:
        said.append((kind, fields))
        if full:
            raise RunFolderError(tmp_path, "is full", "Make room.")

    def draw(*_: Path) -> dict[str, Path]:
        raise ValueError("a formula without an end")

    monkeypatch.setattr(chart_pictures, "write_charts", draw)
    others: Any = (SimpleNamespace(pictures=True),)
    ending.show_trackers(Tracking(None, others=others), RunFolder(tmp_path), say)  # type: ignore[arg-type]
    kind, fields = said[-1]
    assert kind == "warning" and ("is full" if full else "a formula without") in fields["message"]
