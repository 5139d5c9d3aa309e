"""What the tests of commands share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, nothing is said of what is over at once otherwise."""
    monkeypatch.setattr("snugfit.display.activity.PATIENCE_SECONDS", 600.0)
