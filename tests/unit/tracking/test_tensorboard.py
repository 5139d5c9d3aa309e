"""TensorBoard as a tracker: its own reader finds a run's numbers, settings and end, beside MLflow and by itself."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import MissingExtra, SettingError
from snugfit.tracking.sender import replay
from snugfit.tracking.tensorboard import NAME
from tests.unit.tracking.tracking_fakes import FakeBackend, Store, finish, new_run, train


def read(run_dir: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(run_dir / NAME), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def scalars(run_dir: Path, name: str = "train/loss") -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in read(run_dir).Scalars(name)]


def text(run_dir: Path, name: str) -> str:
    *_, newest = read(run_dir).Tensors(f"{name}/text_summary")
    return tensor_util.make_ndarray(newest.tensor_proto)[0].decode()


def test_a_run_is_read_by_tensorboard(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 51))
    finish(spool, 50)
    result = replay(run_dir, NAME)
    assert (result.remaining, result.run_id, result.uri) == (0, NAME, NAME)
    assert [step for step, _ in scalars(run_dir)] == list(range(1, 51))
    store = Store()
    replay(run_dir, "http://tracker", backend=FakeBackend(store))
    theirs = [metric.value for metric in store.metrics["run-1"] if metric.name == "train/loss"]
    assert [value for _, value in scalars(run_dir)] == pytest.approx(theirs)
    assert "snugfit.status | finished" in text(run_dir, "about")


def test_what_was_written_is_not_written_again_and_a_folder_that_is_gone_is_written_whole(
    tmp_path: Path,
) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 11))
    replay(run_dir, NAME)
    train(spool, range(11, 21))
    replay(run_dir, NAME)
    assert [step for step, _ in scalars(run_dir)] == list(range(1, 21))
    assert replay(run_dir, NAME).sent == 0
    shutil.rmtree(run_dir / NAME)
    train(spool, range(21, 23))
    replay(run_dir, NAME)
    assert [step for step, _ in scalars(run_dir)] == list(range(1, 23))


@pytest.mark.slow
def test_a_run_goes_to_both_trackers_and_each_has_its_own_progress(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    new_store("mlflow.db")  # where runs here go by default, with its tables already
    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    settings: dict[str, Any] = {"epochs": 2, "global_batch": 8, "device": "cpu", "output": tmp_path}
    result = sf.train(nn.Linear(2, 2), data, track=["mlflow", "tensorboard"], **settings)
    run = Path(result.run_dir)
    assert [step for step, _ in scalars(run)] == list(range(1, 9))
    assert result.tracker_run_id is not None
    assert (run / "tracking.json").is_file() and (run / "tensorboard.json").is_file()
    alone = sf.train(nn.Linear(2, 2), data, track="tensorboard", **settings)
    assert alone.tracker_run_id is None and not (Path(alone.run_dir) / "tracking.json").exists()
    assert "plan.device | cpu" in text(Path(alone.run_dir), "settings")


def test_the_charts_of_the_report_and_the_weights_are_shown(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    model = nn.Linear(2, 2)
    settings: dict[str, Any] = {"epochs": 2, "global_batch": 8, "device": "cpu", "output": tmp_path}
    result = sf.train(
        model, data, validation=0.25, track="tensorboard", track_histograms=True, display=None, **settings
    )
    shown = read(Path(result.run_dir))
    assert {"report/loss", "report/learning-rate"} <= {*shown.Tags()["images"]}
    (loss,) = shown.Images("report/loss")
    assert (loss.step, loss.width > loss.height > 200) == (6, True)
    weights = shown.Histograms("weights/weight")
    assert [each.step for each in weights] == [3, 6]
    last = weights[-1].histogram_value
    assert (last.min, last.max) == pytest.approx((float(model.weight.min()), float(model.weight.max())))
    assert (last.num, sum(last.bucket)) == (4, 4)
    assert last.sum == pytest.approx(float(model.weight.sum()), abs=4 * (last.max - last.min) / 64)
    sent = len(shown.Histograms("weights/bias"))
    shutil.rmtree(Path(result.run_dir, NAME))
    Path(result.run_dir, f"{NAME}.json").unlink()
    replay(Path(result.run_dir), NAME)
    again = read(Path(result.run_dir))
    assert (len(again.Histograms("weights/bias")), len(again.Images("report/loss"))) == (sent, 1)


def test_a_picture_that_is_gone_keeps_nothing_else_from_arriving(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    spool.append("pictures", update=1, pictures={"worst": "pictures/worst-1.png"})
    train(spool, range(1, 4))
    assert replay(run_dir, NAME).remaining == 0
    assert [step for step, _ in scalars(run_dir)] == [1, 2, 3]


def test_a_disk_that_cannot_be_written_costs_the_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def __init__(self, *_: object) -> None:
            raise OSError(28, "No space left on device")

    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("torch.utils.tensorboard.SummaryWriter", Broken)
        result = sf.train(
            nn.Linear(2, 2),
            data,
            track="tensorboard",
            epochs=1,
            global_batch=8,
            device="cpu",
            output=tmp_path,
        )
    assert result.status == "finished"
    assert f"snugfit track replay {result.run_dir} --uri tensorboard" in capsys.readouterr().err
    replay(Path(result.run_dir), NAME)
    assert len(scalars(Path(result.run_dir))) == 4


def test_without_tensorboard_a_run_that_asks_for_it_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == NAME else there(name, *more)
    )
    data = TensorDataset(torch.randn(8, 2), torch.randint(0, 2, (8,)))
    with pytest.raises(MissingExtra, match=r"snugfit\[tensorboard\]"):
        sf.train(nn.Linear(2, 2), data, track="tensorboard", output=tmp_path)
    with pytest.raises(SettingError, match="track: there is no tracker 'tensorbord'.*'tensorboard'"):
        sf.train(nn.Linear(2, 2), data, track=["tensorbord"], output=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_batch_that_is_sent_twice_draws_the_same_points(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 4))
    replay(run_dir, NAME)
    (run_dir / "tensorboard.json").unlink()  # as if the process had been killed before it was written
    replay(run_dir, NAME)
    assert dict(scalars(run_dir)) == dict(scalars(run_dir)[:3]) and {
        step for step, _ in scalars(run_dir)
    } == {1, 2, 3}
