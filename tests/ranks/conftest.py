"""Two and four ranks for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks.pool import Ranks


@pytest.fixture(scope="session")
def two() -> Iterator[Ranks]:
    yield from _ranks(2)


@pytest.fixture(scope="session")
def four() -> Iterator[Ranks]:
    yield from _ranks(4)


def _ranks(count: int) -> Iterator[Ranks]:
    ranks = Ranks(count)
    yield ranks
    ranks.end()
