"""Windows that are fetched ahead are the same ones, in their order, with their errors where they belong."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from snugfit.core.batch import Batch
from snugfit.core.gradients import Gradients
from snugfit.core.job import Plan
from snugfit.data.loader import WindowsAhead
from snugfit.errors import DataError
from snugfit.run.training import loop
from snugfit.run.training.loop import Training
from tests.unit.run.training.runs import finish, make_training, resumed, stop_at


def windows(events: list[Any], count: int = 3, broken: int | None = None) -> Generator[Batch]:
    try:
        for number in range(count):
            if number == broken:
                raise DataError.from_text("data: row 7 is broken.")
            events.append(number)
            yield Batch({}, number)
    finally:
        events.append("closed")


def test_one_window_is_fetched_ahead_and_no_second_one() -> None:
    events: list[Any] = []
    ahead = WindowsAhead(windows(events))
    assert next(ahead).rows == 0
    ahead.fetch(), ahead.fetch()
    assert events == [0, 1]
    assert [window.rows for window in ahead] == [1, 2]


def test_the_end_is_where_it_is_whether_it_was_fetched_or_not() -> None:
    ahead = WindowsAhead(windows([], count=1))
    found = []
    for window in ahead:
        ahead.fetch()
        found.append(window.rows)
    assert found == [0]


def test_an_error_is_raised_where_its_window_is_asked_for() -> None:
    ahead = WindowsAhead(windows([], broken=1))
    next(ahead)
    ahead.fetch()
    with pytest.raises(DataError, match="row 7"):
        next(ahead)


def test_closing_forgets_what_was_fetched_and_ends_the_windows() -> None:
    events: list[Any] = []
    ahead = WindowsAhead(windows(events))
    ahead.fetch()
    ahead.close()
    assert events == [0, "closed"]
    assert list(ahead) == []


def test_an_interrupt_is_not_kept_for_later() -> None:
    def interrupted() -> Generator[Batch]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        WindowsAhead(interrupted()).fetch()


class Drawn(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Draws each example from the generator that layers draw from too, and notes when."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.events.append("example")
        return torch.randn(2), torch.tensor(index % 3)


def training(folder: Path, events: list[str]) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    return make_training(folder, model=model, train=Drawn(events), plan=Plan(micro_batch=2))


def test_a_run_that_fetches_ahead_is_the_same_to_the_bit_also_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = training(tmp_path / "plain", [])
    finish(plain)
    monkeypatch.setattr(loop, "_computes_beside_host", lambda device: True)
    stop_at(training(tmp_path / "ahead", []), 4)
    ahead = resumed(training(tmp_path / "ahead", []))
    finish(ahead)
    assert ahead.step.progress == plain.step.progress
    ours = ahead.step.model.state_dict()
    assert all(torch.equal(ours[name], value) for name, value in plain.step.model.state_dict().items())
    assert ahead.step.meanwhile is None


def test_the_next_window_is_fetched_before_the_update_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_computes_beside_host", lambda device: True)
    events: list[str] = []
    read = Gradients.read

    def reading(self: Gradients) -> Any:
        events.append("wait")
        return read(self)

    monkeypatch.setattr(Gradients, "read", reading)
    finish(training(tmp_path, events))
    waits = [place for place, event in enumerate(events) if event == "wait"]
    before = [events[:place].count("example") for place in waits]
    first = before[0] - 8  # rows that are read before the first update, to compare a resumed run's with
    assert [count - first for count in before] == [8, 12, 16, 20, 24, 24]


def test_an_example_that_cannot_be_loaded_ends_the_run_behind_the_update_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_computes_beside_host", lambda device: True)
    run = training(tmp_path, [])
    order = run.loader.order
    (_, broken), *_ = order.window(2)
    draw = Drawn.__getitem__

    def failing(self: Drawn, index: int) -> Any:
        if index == broken and run.step.progress.windows > 0:
            raise LookupError("no such image")
        return draw(self, index)

    monkeypatch.setattr(Drawn, "__getitem__", failing)
    with pytest.raises(DataError, match="no such image"):
        finish(run)
    assert run.step.progress.updates == 2
    assert run.step.meanwhile is None
