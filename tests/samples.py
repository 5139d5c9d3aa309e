"""Cases of which the gate runs a sample, and `make test-release` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[str], *kept: str) -> list[Any]:
    """Return all cases as parameters, of which those that are not kept are run before a release alone."""
    names = [*cases]
    if missing := {*kept} - {*names}:
        raise ValueError(f"no case {', '.join(sorted(missing))}; there are {', '.join(names)}")
    return [name if name in kept else pytest.param(name, marks=pytest.mark.release) for name in names]
