from __future__ import annotations

import math
from typing import Any

import pytest

from snugfit.core.job import Job
from snugfit.errors import SettingError


@pytest.mark.parametrize(
    ("epochs", "examples", "expected"), [(1, 8, 2), (1, 9, 3), (2, 9, 6), (0.5, 16, 2), (0.01, 8, 1)]
)
def test_the_last_window_of_an_epoch_may_be_partial(epochs: float, examples: int, expected: int) -> None:
    assert Job.of(global_batch=4, epochs=epochs).total_windows(examples) == expected


def test_a_number_of_updates_is_the_length_of_the_run() -> None:
    assert Job.of(updates=7).total_windows(1000) == 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": None}, "train: one of epochs and updates says how long the run is, found neither"),
        ({"epochs": 0}, "train.epochs: must be a positive number or null, found 0"),
        ({"updates": -1}, "train.updates: must be a positive whole number or null, found -1"),
        ({"global_batch": 0}, "train.global_batch: must be a positive whole number or null, found 0"),
        ({"global_batch": None}, "train: one of global_batch and batch_tokens says .* found neither"),
        ({"batch_tokens": 0}, "train.batch_tokens: must be a positive whole number or null, found 0"),
        ({"start_batch": 32}, "train.start_batch: must be below train.global_batch, which is 32, found 32"),
        ({"start_batch": 9, "batch_tokens": 8}, "train.start_batch: must be below train.batch_tokens"),
        ({"batch_warmup": 5}, "train.start_batch: is missing beside batch_warmup"),
        ({"start_batch": 4, "batch_warmup": 0}, "train.batch_warmup: must be a whole number .* above 0"),
        ({"start_batch": 4, "batch_warmup": 1.5}, "train.batch_warmup: must be a whole number .*, found 1.5"),
        ({"batch_by_epoch": [8, 0]}, r"train.batch_by_epoch: must be a list of positive .*, found \[8, 0\]"),
        ({"start_batch": 4, "batch_by_epoch": [8]}, "train.batch_by_epoch: cannot be given beside"),
        ({"evaluate_every": 0}, "evaluate.every: must be epoch or a positive number of updates, found 0"),
        ({"evaluate_batch": 0}, "evaluate.batch: must be a positive"),
        ({"patience": 0}, "early_stopping.patience: must be a positive"),
        (
            {"patience": 1, "min_delta": -0.1},
            "early_stopping.min_delta: must be a number of at least 0, found -0.1",
        ),
        (
            {"patience": 1, "min_delta": math.nan},
            "early_stopping.min_delta: must be a number of at least 0, found NaN",
        ),
        ({"min_delta": 0.1}, "early_stopping.patience: is missing.*min_delta says what it counts"),
        ({"stop_when": "later"}, "early_stopping.stop_when: must be a function .* found 'later'"),
        ({"checkpoint_every": 0}, "checkpoint.every: must be a positive"),
        ({"checkpoint_keep": 1}, "checkpoint.keep: must be a whole number of at least 2, found 1"),
        ({"checkpoint_save": "later"}, "checkpoint.save: must be sync or async, found 'later'"),
        ({"non_finite": "ignore"}, "non_finite.policy: must be stop, skip or roll_back, found 'ignore'"),
    ],
)
def test_an_impossible_setting_is_refused_by_its_full_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Job.of(**settings)
