"""Trackio as a tracker: its own reader finds a run's numbers, settings and end; the same run goes on, without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import MissingExtra
from snugfit.tracking.backend import Batch, Histogram, Metric, Picture
from snugfit.tracking.sender import replay
from snugfit.tracking.trackio import NAME, TrackioBackend
from tests.unit.tracking.tracking_fakes import finish, new_run, train

WHY = "trackio is not installed (it needs Pillow below 13, which the pinned versions are not)"


def test_without_trackio_a_run_that_asks_for_it_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == NAME else there(name, *more)
    )
    data = TensorDataset(torch.randn(8, 2), torch.randint(0, 2, (8,)))
    with pytest.raises(MissingExtra, match=r"snugfit\[trackio\]"):
        sf.train(nn.Linear(2, 2), data, track=NAME, output=tmp_path)
    assert not list(tmp_path.iterdir())


def test_pictures_and_histograms_come_with_the_numbers_of_their_step_and_the_machine_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in of its client, as it is not installed beside the pinned versions."""
    rows: list[tuple[int, dict[str, Any]]] = []
    client = SimpleNamespace(
        init=lambda **_: SimpleNamespace(log=lambda values, step: rows.append((step, values)), config={}),
        Image=lambda path: ("image", path),
        Histogram=lambda np_histogram: ("histogram", np_histogram),
    )
    monkeypatch.setitem(sys.modules, NAME, client)  # type: ignore[arg-type]
    (tmp_path / "there.png").write_bytes(b"")
    batch = Batch(
        metrics=[Metric("evaluation/loss", 0.5, 0, 3), Metric("system/cpu_percent", 90.0, 0, 2)],
        pictures=[Picture("worst", "there.png", 0, 3), Picture("gone", "gone.png", 0, 3)],
        histograms=[Histogram("weight", 0.0, 2.0, (3, 1), 0, 4)],
    )
    TrackioBackend(tmp_path, "snugfit").send("run", batch)
    assert rows == [
        (3, {"evaluation/loss": 0.5, "worst": ("image", str(tmp_path / "there.png"))}),
        (4, {"weight": ("histogram", ([3, 1], [0.0, 1.0, 2.0]))}),
    ]


def read(project: str, name: str) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Rows and settings of a run, as Trackio's dashboard reads them."""
    trackio = pytest.importorskip("trackio", reason=WHY)
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = (each for each in trackio.Api().runs(project) if each.name == name)
    return SQLiteStorage.get_logs(project, name), run.config


@pytest.mark.slow
def test_a_run_is_read_by_trackio_and_goes_on_as_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trackio", reason=WHY)
    import trackio.sqlite_storage
    import trackio.utils

    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    for module in (trackio.utils, trackio.sqlite_storage):  # read when they were imported
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 11))
    first = replay(run_dir, NAME)
    train(spool, range(11, 21))
    finish(spool, 20)
    second = replay(run_dir, NAME)
    assert (first.remaining, second.remaining, second.run_id) == (0, 0, first.run_id)
    rows, settings = read("snugfit", "demo/1")
    losses = {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert losses == pytest.approx({update: 1 / update for update in range(1, 21)})
    assert settings["train.epochs"] == 3 and settings["_Group"] == "demo"
    assert any("snugfit.status | finished" in str(row.get("about")) for row in rows)
    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    given = {"epochs": 1, "global_batch": 8, "device": "cpu", "output": tmp_path / "runs", "track": NAME}
    run = Path(sf.train(nn.Linear(2, 2), data, **given).run_dir)
    rows, _ = read("snugfit", f"run/{run.name}")
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3, 4]
