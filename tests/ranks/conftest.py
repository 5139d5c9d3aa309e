"""Two ranks for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks.pool import Ranks


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.end()
