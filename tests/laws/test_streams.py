"""Streams and shards: a run is the plain loop over what they give, in any micro-batches, with any workers and across any stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from snugfit.core.job import Plan
from snugfit.data.files.labelled_files import collate
from snugfit.data.pictures.labelled_pictures import PictureSettings, load_pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.errors import DataError, RunFolderError
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ema import EMA
from tests.laws import problems
from tests.laws.problems import differences, relative_error
from tests.laws.streams import BUFFER, HELD_OUT, SEED, UPDATES, WINDOW, by_hand, model, rows, training
from tests.laws.test_resume_run import saved
from tests.oracles import streams as oracle
from tests.unit.data.shard_files import png, write_shard
from tests.unit.run.training.runs import finish, make_training, resumed, seen, stop_at, told

LEARNING = (AdamW(learning_rate=0.01), Cosine(warmup=2), EMA(decay=0.8))


@pytest.mark.parametrize(
    ("micro_batch", "workers"), [(None, 0), (2, 0), pytest.param(1, 2, marks=pytest.mark.slow)]
)
def test_a_run_is_the_plain_loop_over_what_its_stream_gives(
    micro_batch: int | None, workers: int, tmp_path: Path
) -> None:
    read = oracle.run(lambda _: rows(), BUFFER, SEED, UPDATES * WINDOW, HELD_OUT)
    expected = by_hand([read[start : start + WINDOW] for start in range(0, len(read), WINDOW)])
    run = training(tmp_path, plan=Plan(micro_batch=micro_batch, num_workers=workers))
    assert finish(run).updates == UPDATES
    assert relative_error(problems.weights(run.step), expected) <= 1e-12


def stopping_changes_nothing(begun: Any) -> None:
    whole = begun("whole")
    finish(whole)
    stopped, read = begun("stopped"), []
    for stop in range(1, whole.total_windows):
        stop_at(stopped, stop)
        read += seen(stopped)
        stopped = resumed(begun("stopped", seed=stop + 1))
    finish(stopped)
    assert read + seen(stopped) == seen(whole)
    assert told(stopped) == told(whole)
    assert not differences(saved(whole), saved(stopped))


@pytest.mark.parametrize("windows", ["examples", pytest.param("examples that grow", marks=pytest.mark.slow)])
def test_stopping_after_every_update_changes_nothing_of_a_stream(windows: str, tmp_path: Path) -> None:
    def begun(name: str, seed: int = 1) -> Training:
        return training(tmp_path / name, windows, model=model(seed, dropout=0.2), techniques=LEARNING)

    stopping_changes_nothing(begun)


@pytest.mark.slow
def test_stopping_after_every_update_changes_nothing_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number in range(2):
        members: dict[str, bytes | str] = {}
        for row in range(number * 7, number * 7 + 7):
            members |= {f"{row}.png": png(row), f"{row}.cls": str(row % 2)}
        write_shard(tmp_path / "shards" / f"{number}.tar", members)
    settings = PictureSettings(str(tmp_path / "shards"), validation=0.25, augment=("crop", "flip"))

    class Pixels(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.head = nn.Linear(3 * 8 * 8, 2)

        def forward(self, pixel_values: Tensor) -> Tensor:
            logits: Tensor = self.head(pixel_values.flatten(1))
            return logits

    def begun(name: str, seed: int = 1, workers: int = 0) -> Training:
        pictures = load_pictures(settings, PictureFormat(8, 8, None))
        return make_training(
            tmp_path / name,
            train=pictures.train,
            validation=pictures.validation,
            collate=collate,
            model=Pixels(seed),
            techniques=LEARNING,
            plan=Plan(micro_batch=2, num_workers=workers),
        )

    stopping_changes_nothing(begun)
    apart = begun("workers", workers=2)
    finish(apart)
    one = begun("one")
    finish(one)
    assert not differences(saved(one)["model"], saved(apart)["model"])


class Changed(IterableDataset):
    """The rows, of which one is another in one of the passes."""

    def __init__(self, epoch: int, place: int) -> None:
        self.place, self.changed, self.epoch = place, epoch, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for place, (inputs, label) in enumerate(rows()):
            yield inputs + (self.epoch == self.changed and place == self.place), label


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        # among the rows that are compared of all data, and behind them
        (Changed(0, 10), "data: train row"),
        (Changed(1, 18), "gave other rows when it was read again"),
    ],
    ids=["first pass", "second pass"],
)
def test_a_resume_is_refused_where_the_stream_gives_other_rows(
    changed: Changed, problem: str, tmp_path: Path
) -> None:
    run = training(tmp_path / "run", of=Changed(-1, 0))
    stop_at(run, 7)
    with pytest.raises((DataError, RunFolderError)) as error:
        resumed(training(tmp_path / "run", of=changed))
    assert problem in str(error.value)
    on = resumed(training(tmp_path / "run", of=changed, accept_changes=("data",)))
    assert finish(on).updates == UPDATES


def test_a_change_behind_what_was_trained_on_is_none(tmp_path: Path) -> None:
    run = training(tmp_path / "run", of=Changed(-1, 0))
    stop_at(run, 5)
    on = resumed(training(tmp_path / "run", of=Changed(1, 20)))
    assert finish(on).updates == UPDATES


def test_a_source_that_fails_ends_the_run_and_a_resume_goes_on(tmp_path: Path) -> None:
    def failing() -> Iterator[tuple[Tensor, Tensor]]:
        yield from rows()[:14]
        raise OSError("the disk is gone")

    whole = training(tmp_path / "whole")
    finish(whole)
    run = training(tmp_path / "run", of=failing, checkpoint_every=1)
    with pytest.raises(DataError) as error:
        finish(run)
    assert "failed at row 15" in str(error.value) and "the disk is gone" in str(error.value)
    on = resumed(training(tmp_path / "run"))
    assert 0 < on.step.progress.updates < UPDATES
    finish(on)
    assert not differences(saved(whole)["model"], saved(on)["model"])
