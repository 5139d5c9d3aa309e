"""Cases of which the gate runs a sample, and `make test-release` all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def some_of(
    cases: Iterable[T], kept: Collection[T], named: Callable[[T], Hashable] = lambda case: case
) -> list[Any]:
    """Return all cases as parameters, of which those that are not kept are run before a release alone.

    Args:
        named: tells cases apart, where they cannot be in a set.
    """
    given, names = [*cases], {*map(named, kept)}
    if missing := names - {*map(named, given)}:
        raise ValueError(f"no case {', '.join(sorted(map(str, missing)))}")
    return [case if named(case) in names else pytest.param(case, marks=pytest.mark.release) for case in given]
