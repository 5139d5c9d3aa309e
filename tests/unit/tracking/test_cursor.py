from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from snugfit.errors import RunFolderError, TrackingError
from snugfit.tracking import cursor as module
from snugfit.tracking.cursor import Cursor, Cursors, sending, stored_uri
from snugfit.tracking.pending import Thinning


def run_folder(folder: Path) -> Path:
    run_dir = folder / "runs" / "demo" / "1"
    run_dir.mkdir(parents=True)
    return run_dir


def test_progress_with_several_trackers_is_read_back_as_it_was_put(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path)
    first = Cursor(run_id="a", offset=10, described=True, thinning=Thinning(tokens=3.5, time=9.0))
    cursors = Cursors(run_dir)
    cursors.put("http://one", first, current=True)
    cursors.put("http://two", Cursor(run_id="b", offset=20), current=False)
    again = Cursors(run_dir)
    assert again.get("http://one") == first
    assert again.get("http://two") == Cursor(run_id="b", offset=20)
    assert again.get("http://three") is None
    assert stored_uri(run_dir) == "http://one"


def test_a_write_that_does_not_end_leaves_the_old_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run_folder(tmp_path)
    Cursors(run_dir).put("http://one", Cursor(run_id="a", offset=10), current=True)

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module.os, "fsync", die)
    with pytest.raises(KeyboardInterrupt):
        Cursors(run_dir).put("http://one", Cursor(run_id="a", offset=99), current=True)
    assert Cursors(run_dir).get("http://one") == Cursor(run_id="a", offset=10)


def test_a_reader_of_the_old_progress_is_not_disturbed_by_a_write(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path)
    Cursors(run_dir).put("http://one", Cursor(run_id="a", offset=10), current=True)
    old = (run_dir / "tracking.json").read_text()
    with open(run_dir / "tracking.json") as reader:
        Cursors(run_dir).put("http://one", Cursor(run_id="a", offset=99), current=True)
        assert reader.read() == old
    assert (run_dir / "tracking.json").read_text() != old


def test_a_moved_runs_folder_takes_its_database_along(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path / "here")
    Cursors(run_dir).put(f"sqlite:///{tmp_path}/here/runs/mlflow.db", Cursor(run_id="a"), current=True)
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = tmp_path / "there" / "runs" / "demo" / "1"
    assert stored_uri(moved) == f"sqlite:///{tmp_path}/there/runs/mlflow.db"
    assert Cursors(moved).get(f"sqlite:///{tmp_path}/there/runs/mlflow.db") == Cursor(run_id="a")


@pytest.mark.parametrize("place", ["there/1", "here/elsewhere/runs/demo/1"])
def test_a_run_that_is_moved_without_its_database_goes_on_in_it(tmp_path: Path, place: str) -> None:
    run_dir = run_folder(tmp_path / "here")
    database = tmp_path / "here" / "runs" / "mlflow.db"
    uri = f"sqlite:///{database}"
    Cursors(run_dir).put(uri, Cursor(run_id="a"), current=True)
    database.touch()
    moved = tmp_path / place
    moved.parent.mkdir(parents=True)
    shutil.move(run_dir, moved)
    assert stored_uri(moved) == uri
    Cursors(moved).put(uri, Cursor(run_id="a", offset=9), current=True)
    assert Cursors(moved).get(uri) == Cursor(run_id="a", offset=9)
    assert stored_uri(moved) == uri


def test_a_run_that_took_its_database_along_goes_on_in_that_though_another_one_is_made_where_it_was(
    tmp_path: Path,
) -> None:
    database = tmp_path / "here" / "runs" / "mlflow.db"
    Cursors(run_folder(tmp_path / "here")).put(f"sqlite:///{database}", Cursor(run_id="a"), current=True)
    database.touch()
    shutil.move(tmp_path / "here", tmp_path / "there")
    database.parent.mkdir(parents=True)
    database.touch()
    moved = tmp_path / "there" / "runs" / "demo" / "1"
    assert Cursors(moved).get(f"sqlite:///{tmp_path}/there/runs/mlflow.db") == Cursor(run_id="a")
    assert Cursors(moved).get(f"sqlite:///{database}") is None


def test_a_copy_of_a_run_does_not_go_on_in_the_database_of_the_run(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path / "here")
    database = tmp_path / "here" / "runs" / "mlflow.db"
    Cursors(run_dir).put(f"sqlite:///{database}", Cursor(run_id="a"), current=True)
    database.touch()
    copied = shutil.copytree(run_dir, tmp_path / "there" / "1")
    assert stored_uri(copied) != f"sqlite:///{database}"


def test_a_database_elsewhere_keeps_its_place(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path / "here")
    uri = f"sqlite:///{tmp_path}/central/mlflow.db"
    Cursors(run_dir).put(uri, Cursor(run_id="a"), current=True)
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert stored_uri(tmp_path / "there" / "runs" / "demo" / "1") == uri


def test_the_password_is_not_stored(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path)
    Cursors(run_dir).put("https://me:secret@host", Cursor(run_id="a"), current=True)
    assert "secret" not in (run_dir / "tracking.json").read_text()
    assert Cursors(run_dir).get("https://me:secret@host") == Cursor(run_id="a")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "trackers": {"x": {}}, "current": null}']
)
def test_a_broken_file_is_said_with_what_to_do(tmp_path: Path, content: str) -> None:
    run_dir = run_folder(tmp_path)
    (run_dir / "tracking.json").write_text(content)
    with pytest.raises(RunFolderError, match="Remove it"):
        Cursors(run_dir)


def test_one_sender_at_a_time(tmp_path: Path) -> None:
    run_dir = run_folder(tmp_path)
    with sending(run_dir), pytest.raises(TrackingError, match="another process"), sending(run_dir):
        raise AssertionError("two senders")
    with sending(run_dir):
        pass
