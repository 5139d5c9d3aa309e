from __future__ import annotations

from typing import Any

import pytest

from snugfit.planner.plan import Request
from snugfit.run.plans import planning
from tests.unit.planner.asked import Here, Stopped


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that reach the planner, which makes no plan of them."""
    found: list[Request] = []

    def stop(subject: Any, machine: Any, request: Request, *rest: Any) -> None:
        found.append(request)
        raise Stopped

    monkeypatch.setattr(planning, "make_plan", stop)
    monkeypatch.setattr(planning, "Worker", Here)
    return found
