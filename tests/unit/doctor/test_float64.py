"""What is added up in float64 around a run is added up on the host, where the device has no float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from snugfit.doctor.observe.watchers.optimizers import gradient_state
from snugfit.doctor.observe.watchers.optimizers.gradient_state import Length, magnitude
from snugfit.doctor.observe.watchers.updates.watch_updates import _sums

ONES = torch.full((3,), 2.0)


@pytest.mark.parametrize("on_mps", [True, False])
@pytest.mark.parametrize(
    ("add_up", "total"),
    [
        (lambda: magnitude([ONES]), 6.0),
        (lambda: Length.of(ONES).norm, 12**0.5),
        (lambda: _sums(nn.Parameter(ONES))[0], 6.0),
    ],
    ids=["magnitude", "length", "sums"],
)
def test_gradients_of_a_watched_script_are_added_up_where_there_is_float64(
    add_up: Callable[[], float], total: float, on_mps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that trains on a Mac would have its watcher fail at the first update."""
    moved: list[Tensor] = []
    monkeypatch.setattr(gradient_state, "NO_FLOAT64", frozenset({"cpu"} if on_mps else {"mps"}))
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: moved.append(tensor) or tensor)
    assert add_up() == pytest.approx(total, rel=1e-15)
    assert len(moved) == on_mps
