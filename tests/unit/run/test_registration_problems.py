"""A run that has ended keeps its result, whatever the registry says to its best model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from snugfit.errors import ModelError, SettingError, TrackingError, UserError
from snugfit.run.trackers import Trackers
from snugfit.tracking.follower import TrackingResult


@pytest.mark.parametrize("kind", [TrackingError, ModelError, SettingError])
def test_a_model_that_cannot_be_registered_is_told_and_ends_nothing(kind: type[UserError]) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    def register(run_id: str | None) -> Mapping[str, Any]:
        raise kind("model", f"is not for {run_id}", "Do without.")

    trackers = Trackers(None, None, lambda kind, **values: told.append((kind, values)))  # type: ignore[arg-type]
    trackers._register(register, TrackingResult("store", "7", sent=1, unsent=0, problem=None))
    assert told == [
        (
            "warning",
            {"message": "the best model was not registered: model: is not for 7. Do without."},
        )
    ]
