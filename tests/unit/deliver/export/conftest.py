from __future__ import annotations

import pytest

from snugfit.deliver.export import read_back, reader


@pytest.fixture
def reading_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other libraries read in this process, as to start one for each takes longer than the rest; the slow tests start them."""
    monkeypatch.setattr(read_back, "run_reader", lambda place: reader.main(str(place)))
