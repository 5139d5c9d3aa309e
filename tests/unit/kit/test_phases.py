"""Phases, which cost nothing where nobody watches, and are seen by whoever does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from snugfit.kit.phases import phase, watched
from snugfit.system.nothing import NOTHING


def test_a_phase_that_was_entered_unwatched_is_seen_by_a_watcher_of_later() -> None:
    seen: list[str] = []

    @contextmanager
    def label(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    def enter() -> None:
        for name in ("forward", "backward", "forward"):
            with phase(name):
                pass

    enter()
    with watched(label):
        enter()
        with watched(lambda _: NOTHING):
            enter()
        enter()
    enter()
    assert seen == ["forward", "backward", "forward"] * 2


def test_no_error_ends_in_the_context_that_holds_nothing() -> None:
    with pytest.raises(ValueError, match="goes on"), NOTHING:
        raise ValueError("goes on")
