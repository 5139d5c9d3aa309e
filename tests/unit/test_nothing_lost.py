"""Folders: what a run, or a resume that fails, may remove, and a run that ended before its first checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import RunFolderError, SettingError, UserError
from snugfit.kit.serialize import pack
from snugfit.kit.streaming.host import Packed
from snugfit.kit.streaming.layout import Weight
from snugfit.models.bundle import save_bundle
from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.events import opened
from snugfit.tracking.spool import Spool, read_events


def train(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))
    return sf.train(
        nn.Linear(3, 2),
        data,
        **{"epochs": 1, "output": folder, "track": False, "device": "cpu", "global_batch": 4, **settings},
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("events", ["", "{}\n", '{"event":"click","time":1}\n'])
def test_a_resume_on_somebodys_own_folder_leaves_every_byte_of_it(tmp_path: Path, events: str) -> None:
    own = tmp_path / "thesis"
    (own / "best").mkdir(parents=True)
    for name in ("events.jsonl", "chapter.txt", "best/figure.txt"):
        (own / name).write_text(events)
    before = contents(own)
    with pytest.raises(RunFolderError, match="not a run's folder: no run has begun in it"):
        train(tmp_path, resume=own)
    assert contents(own) == before


def test_a_resume_that_fails_in_a_run_without_a_checkpoint_removes_nothing(tmp_path: Path) -> None:
    with Spool(tmp_path / "events.jsonl") as spool:
        spool.append("run", name="run", id="killed")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SettingError):
        train(tmp_path, resume=tmp_path, loss="no such loss")
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")][:1] == ["run"]


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again_where_it_is(tmp_path: Path) -> None:
    finished = train(tmp_path / "whole")
    run = tmp_path / "killed"
    with Spool(run / "events.jsonl") as spool:
        spool.append("run", name="run", id="killed")
        spool.append("update", update=1, window=1, epoch=0.3, metrics={"loss": 7.0})
    (run / "notes.txt").write_text("mine")
    again = train(tmp_path, resume=run)
    assert (again.status, again.updates, again.run_dir) == ("finished", finished.updates, str(run))
    one, other = (
        checkpoint_files.load_newest(Path(folder) / "checkpoints").parts["model"]["parameters"]
        for folder in (finished.run_dir, run)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    raw = read_events(run / "events.jsonl", raw=True)
    assert next(event["metrics"]["loss"] for event in raw if event["event"] == "update") == 7.0
    losses = [
        event["metrics"]["loss"] for event in read_events(run / "events.jsonl") if event["event"] == "update"
    ]
    assert len(losses) == 3
    assert 7.0 not in losses  # those of before are kept in the file, and are no longer of the run
    assert any("starts again" in event.get("message", "") for event in raw)
    assert (run / "notes.txt").read_text() == "mine"


def test_a_run_whose_checkpoints_are_gone_does_not_start_again_over_its_best_model(tmp_path: Path) -> None:
    run = Path(train(tmp_path).run_dir)
    checkpoint_files.remove_all(run / "checkpoints")
    before = contents(run)
    with pytest.raises(
        RunFolderError, match="the run has saved checkpoints, and checkpoints/ has none of them"
    ):
        train(tmp_path, resume=run)
    assert contents(run) == before


def test_an_error_before_the_first_update_removes_only_a_folder_that_was_made_here(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "runs", "name")
    (tmp_path / "given").mkdir()
    for folder in (made, RunFolder(tmp_path / "given")):
        with pytest.raises(UserError), opened(folder, None):
            raise UserError.from_text("no such row")
    assert (tmp_path / "given/events.jsonl").exists()
    assert not (tmp_path / "runs/name").exists()


def test_a_folder_above_that_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "name").mkdir()
    RunFolder.create(tmp_path, "name").discard()
    assert list(tmp_path.iterdir()) == [tmp_path / "name"]


@pytest.mark.parametrize("own", ["notes.txt", "model.partial"])
def test_a_folder_into_which_somebody_put_a_file_is_not_discarded(tmp_path: Path, own: str) -> None:
    folder = RunFolder.create(tmp_path, "name")
    folder.write_json("plan.json", {})
    (folder.path / own).write_text("mine")
    folder.discard()
    assert {path.name for path in folder.path.iterdir()} == {own, "plan.json"}


def test_pruning_leaves_copies_of_checkpoints_under_other_names_and_what_is_linked(tmp_path: Path) -> None:
    source, root = tmp_path / "elsewhere", tmp_path / "checkpoints"
    checkpoint_files.write(source / "update-00000001", pack({"run": {}}), keep=1)
    root.mkdir()
    (root / "update-00000001").symlink_to(source / "update-00000001")
    (root / "update-00000002-good").mkdir()
    (root / "update-of-mine.txt").write_text("mine")
    for number in (3, 4):
        checkpoint_files.write(root / f"update-{number:08d}", pack({"run": {}}), keep=1)
    assert sorted(path.name for path in root.iterdir()) == [
        "update-00000002-good",
        "update-00000004",
        "update-of-mine.txt",
    ]
    assert (source / "update-00000001/manifest.json").exists()
    checkpoint_files.remove_all(root)
    assert sorted(path.name for path in root.iterdir()) == ["update-00000002-good", "update-of-mine.txt"]


def test_a_folder_that_is_no_bundle_is_not_replaced_by_the_best_model(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    save_bundle(tmp_path / "best", nn.Linear(2, 2), {})  # an empty one is
    save_bundle(tmp_path / "best", nn.Linear(2, 2), {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/figure.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"it holds files and no snugfit\.json"):
        save_bundle(tmp_path / "mine", nn.Linear(2, 2), {})
    assert (tmp_path / "mine/figure.txt").read_text() == "mine"


def test_streamed_weights_replace_only_files_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "blocks.0.safetensors"
    for _ in range(2):
        Packed([Weight("w", nn.Parameter(torch.ones(3)), [])], pin=False, file=file)
    file.write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(
        SettingError, match=r"weight_streaming\.folder: .* was not written by weight_streaming"
    ):
        Packed([Weight("w", nn.Parameter(torch.ones(3)), [])], pin=False, file=file)
    assert file.read_bytes().endswith(b"{}")


def test_a_plan_is_written_before_the_recipe_so_that_a_recipe_alone_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("name: mine\n")
    with pytest.raises(RunFolderError, match=r"it has no events\.jsonl"):
        RunFolder.open(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({}))
    assert RunFolder.open(tmp_path).path == tmp_path.resolve()
