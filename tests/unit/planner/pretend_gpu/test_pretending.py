"""A device that is planned for: pretended where that can be, else a CPU in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from snugfit.planner import target
from snugfit.planner.pretend_gpu.pretended_gpu import CannotPretend
from snugfit.planner.target import Target, machine_of


def test_a_gpu_that_cannot_be_pretended_is_planned_for_as_a_cpu_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def refusing(*args: Any) -> Iterator[None]:
        raise CannotPretend("another torch")
        yield

    monkeypatch.setattr(target, "pretending_gpu", refusing)
    with machine_of(Target(device="rtx4090")) as machine:
        assert machine.type == "cpu" and "another torch" in machine.notes[0]


def test_an_error_while_a_gpu_is_pretended_passes_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def pretended(*args: Any) -> Iterator[None]:
        yield

    monkeypatch.setattr(target, "pretending_gpu", pretended)
    with pytest.raises(CannotPretend, match="not for this"), machine_of(Target(device="rtx4090")):
        raise CannotPretend("not for this")
