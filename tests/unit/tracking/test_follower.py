from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from snugfit.errors import MissingExtra, RunFolderError, TrackingError
from snugfit.tracking import follower, sender
from snugfit.tracking import mlflow as mlflow_module
from snugfit.tracking.backend import Batch, reason
from snugfit.tracking.cursor import Cursors, sending
from snugfit.tracking.follower import Tracker
from snugfit.tracking.sender import replay
from snugfit.tracking.spool import Spool
from tests.unit.tracking.tracking_fakes import FakeBackend, Store, finish, new_run, train

URI = "http://tracker"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "FIRST_BACKOFF_SECONDS", 0.001)
    monkeypatch.setattr(follower, "MAX_BACKOFF_SECONDS", 0.004)


def fail_on(fails: Callable[[int], bool]) -> Callable[[int], None]:
    def act(call: int) -> None:
        if fails(call):
            raise ConnectionError(f"call {call} failed")

    return act


def tracker_of(run_dir: Path, backend: FakeBackend, uri: str = URI) -> Tracker:
    return Tracker(run_dir, uri=uri, backend=backend, interval_seconds=0.005)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def test_all_events_arrive_in_order_and_only_the_trackers_thread_talks_to_the_tracker(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    with tracker_of(run_dir, FakeBackend(store)) as tracker:
        train(spool, range(1, 101))
        finish(spool, 100)
        result = tracker.close(timeout=60)
    assert (result.sent, result.unsent, result.problem) == (103, 0, None)
    assert result.message(run_dir) is None
    assert result.run_id == "run-1"
    assert store.steps("run-1") == list(range(1, 101))
    assert [metric.value for metric in store.metrics["run-1"] if metric.name == "train/loss"][:2] == [
        1.0,
        0.5,
    ]
    assert store.steps("run-1", "evaluation/accuracy") == [100]
    assert store.params["run-1"]["plan.micro_batch"] == "16"
    assert store.status["run-1"] == "finished"
    assert threading.get_ident() not in store.threads
    assert store.closed == 1
    cursor = Cursors(run_dir).get(URI)
    assert cursor is not None
    assert cursor.offset == (run_dir / "events.jsonl").stat().st_size


def test_a_tracker_that_fails_every_second_call_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    tracker = tracker_of(run_dir, FakeBackend(store, before=fail_on(lambda call: call % 2 == 1))).start()
    for start in range(1, 500, 50):
        train(spool, range(start, start + 50))
        tracker.flush(timeout=60)
    finish(spool, 500)
    wait_until(lambda: tracker.flush(timeout=60).unsent == 0)
    result = tracker.close(timeout=60)
    assert store.calls > 10
    assert (result.unsent, result.problem) == (0, None)
    assert store.steps("run-1") == list(range(1, 501))
    assert len(store.metrics) == 1, "a failed call must not begin another run"


def test_an_acknowledgement_that_is_lost_stores_nothing_twice(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    tracker = tracker_of(run_dir, FakeBackend(store, after=fail_on(lambda call: call % 3 == 0))).start()
    train(spool, range(1, 501))
    finish(spool, 500)
    wait_until(lambda: tracker.flush(timeout=60).unsent == 0)
    tracker.close(timeout=60)
    assert sum(len(batch.metrics) for batch in store.sent) > len(store.metrics["run-1"]), (
        "some were sent twice"
    )
    assert store.steps("run-1") == list(range(1, 501))


def test_a_dead_tracker_keeps_everything_and_says_how_to_send_it(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    tracker = tracker_of(run_dir, FakeBackend(store, before=fail_on(lambda call: True))).start()
    train(spool, range(1, 31))
    wait_until(lambda: store.calls > 3)
    finish(spool, 30)
    result = tracker.close(timeout=60)
    assert (result.run_id, result.sent, result.unsent) == (None, 0, 33)
    assert "call" in (result.problem or "")
    assert f"snugfit track replay {run_dir}" in (result.message(run_dir) or "")
    assert not tracker._thread.is_alive(), "a failing tracker is given up at once, before the timeout"
    assert store.closed == 1

    assert replay(run_dir, URI, backend=FakeBackend(store)).sent == 33
    assert store.steps("run-1") == list(range(1, 31))


def test_the_training_thread_writes_on_while_the_tracker_hangs(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store, hanging, go_on = Store(), threading.Event(), threading.Event()

    def hang(call: int) -> None:
        hanging.set()
        assert go_on.wait(60)

    tracker = tracker_of(run_dir, FakeBackend(store, before=hang)).start()
    train(spool, range(1, 2))
    assert hanging.wait(60)
    train(spool, range(2, 501))  # would never end if an append waited for the tracker
    assert not store.sent
    result = tracker.close(timeout=0.05)
    assert result.unsent == 501
    assert "0.05 s" in (result.problem or "")
    with pytest.raises(TrackingError, match="being sent"):
        replay(run_dir, URI, backend=FakeBackend(store))

    go_on.set()  # the batch under way is stored after all, and nothing behind it
    tracker._thread.join(60)
    assert store.steps("run-1") == [1]
    assert replay(run_dir, URI, backend=FakeBackend(store)).remaining == 0
    assert store.steps("run-1") == list(range(1, 501))
    assert list(store.metrics) == ["run-1"]


def test_a_flush_and_the_close_after_it_wait_for_any_tracker_in_one_bound_and_say_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "END_SECONDS", 0.2)
    monkeypatch.setattr(follower, "_SILENT_SECONDS", 0.05)
    run_dir, spool = new_run(tmp_path)
    go_on, messages = threading.Event(), []
    uri = f"sqlite:///{tmp_path}/locked.db"
    backend = FakeBackend(Store(), before=lambda call: assert_(go_on.wait(60)))
    tracker = Tracker(run_dir, uri=uri, backend=backend, interval_seconds=0.005, say=messages.append).start()
    train(spool, range(1, 3))
    assert tracker.flush().problem == "no answer within 0.2 s"
    start = time.monotonic()
    assert tracker.close().unsent == 3
    assert time.monotonic() - start < 30  # not once more what a flush may wait
    assert tracker._left == 0.0
    assert len(messages) == 1
    assert messages[0].startswith("waiting up to 0 s for sqlite:///")
    go_on.set()


def test_what_a_flush_writes_while_it_waits_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, spool = new_run(tmp_path)
    tracker = Tracker(run_dir, uri=URI, backend=FakeBackend(Store()), interval_seconds=600).start()
    train(spool, range(1, 4))
    wait = tracker._wait

    def wait_and_write(until: Callable[[float], bool], timeout: float | None) -> str:
        late = wait(until, timeout)
        spool.append("note", text="waiting up to 30 s")
        return late

    monkeypatch.setattr(tracker, "_wait", wait_and_write)
    result = tracker.flush(60)
    assert (result.unsent, result.problem, result.run_id) == (0, None, "run-1")
    monkeypatch.undo()
    assert tracker.close(60).unsent == 0


def test_a_tracker_is_waited_for_a_little_at_a_time_so_that_a_signal_as_a_wait_begins_is_seen(
    tmp_path: Path,
) -> None:
    run_dir, _ = new_run(tmp_path)
    waits: list[float] = []

    def until(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 3

    tracker_of(run_dir, FakeBackend(Store()))._wait(until, 1000.0)
    assert len(waits) == 3 and max(waits) <= 2.0


def test_ctrl_c_ends_the_wait_for_a_tracker_and_nothing_else(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    go_on = threading.Event()
    tracker = tracker_of(run_dir, FakeBackend(Store(), before=lambda call: assert_(go_on.wait(60)))).start()
    train(spool, range(1, 3))

    def interrupt(seconds: float) -> bool:
        raise KeyboardInterrupt

    assert tracker._wait(interrupt, None) == "the wait was ended"
    assert tracker.flush().problem == tracker.close().problem == "the wait was ended"
    go_on.set()


def assert_(holds: bool) -> None:
    assert holds


def test_a_replay_after_a_tracker_that_was_dead_from_the_start_goes_to_that_tracker(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    with tracker_of(run_dir, FakeBackend(Store(), before=fail_on(lambda call: True))) as tracker:
        train(spool, range(1, 4))
        assert tracker.close(timeout=60).unsent == 4
    result = replay(run_dir, backend=FakeBackend(Store()))
    assert (result.sent, result.uri) == (4, URI)


@pytest.mark.parametrize("given", [None, "http://other"])
def test_a_replay_of_a_run_without_a_cursor_goes_to_the_tracker_of_its_recipe(
    tmp_path: Path, given: str | None
) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 4))
    (run_dir / "recipe.yaml").write_text("track: {uri: 'http://me:secret@own', experiment: films}\n")
    experiments = []

    class Named(FakeBackend):
        def __call__(self, uri: str, experiment: str) -> FakeBackend:
            experiments.append(experiment)
            return super().__call__(uri, experiment)

    result = replay(run_dir, given, backend=Named(Store()))
    assert (result.sent, result.uri) == (4, given or "http://me:secret@own")
    assert experiments == ["films"]
    # another tracker does not become the run's own, and the recipe's password is known still
    assert replay(run_dir, backend=FakeBackend(Store())).uri == "http://me:secret@own"


def test_nothing_is_opened_before_the_first_measurement(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    tracker = tracker_of(run_dir, FakeBackend(store)).start()
    spool.append("warning", message="models take time to load")
    time.sleep(0.1)
    assert store.threads == set()
    train(spool, range(1, 2))
    wait_until(lambda: bool(store.sent))
    tracker.close(timeout=60)


def test_a_resumed_run_goes_on_under_its_id_and_sends_only_what_is_new(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    with tracker_of(run_dir, FakeBackend(store)):
        train(spool, range(1, 11))
        finish(spool, 10, status="stopped")
    spool.close()
    assert store.status["run-1"] == "stopped"

    again = Spool(run_dir / "events.jsonl")
    again.append("run", name="demo", id="1", recipe={"train": {"epochs": 99}}, plan={"micro_batch": 8})
    again.append("resume", update=10, window=10)
    batches = len(store.sent)
    tracker = tracker_of(run_dir, FakeBackend(store))
    assert tracker.run_id == "run-1", "known before it is started, for the run's own record"
    with tracker:
        train(again, range(11, 21))
        finish(again, 20)
    assert store.opened == [None, "run-1"]
    assert store.steps("run-1") == list(range(1, 21))
    assert [batch.params for batch in store.sent[batches:]] == [{}] * (len(store.sent) - batches)
    assert store.status["run-1"] == "finished"


def test_what_a_resume_repeats_is_not_sent_if_it_was_not_sent_before(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 21))
    spool.append("resume", update=10, window=10)
    train(spool, range(11, 31))
    store = Store()
    with tracker_of(run_dir, FakeBackend(store)):
        pass
    assert store.steps("run-1") == list(range(1, 31))


def test_a_run_that_was_deleted_in_the_tracker_is_sent_again_as_a_new_one(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    with tracker_of(run_dir, FakeBackend(store)):
        train(spool, range(1, 11))
        spool.append("resume", update=5, window=5)
        train(spool, range(6, 11))
    del store.metrics["run-1"]
    store.metrics["somebody else's"] = []
    with tracker_of(run_dir, FakeBackend(store)) as tracker:
        train(spool, range(11, 21))
        result = tracker.close(timeout=60)
    assert result.run_id == "run-2"
    assert store.steps("run-2") == list(range(1, 21))
    assert store.params["run-2"]["train.epochs"] == "3"


def test_another_address_gets_the_whole_run(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    first, second = Store(), Store()
    with tracker_of(run_dir, FakeBackend(first)):
        train(spool, range(1, 11))
    with tracker_of(run_dir, FakeBackend(second), uri="http://other"):
        train(spool, range(11, 21))
    assert first.steps("run-1") == list(range(1, 11))
    assert second.steps("run-1") == list(range(1, 21))


def test_a_crash_between_sending_and_remembering_sends_the_batch_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 11))
    store = Store()
    put = Cursors.put

    def crash(self: Cursors, uri: str, cursor: sender.Cursor, *, current: bool) -> None:
        if cursor.offset:
            raise OSError("disk full")
        put(self, uri, cursor, current=current)

    with monkeypatch.context() as patch:
        patch.setattr(Cursors, "put", crash)
        with pytest.raises(TrackingError, match="disk full"):
            replay(run_dir, URI, backend=FakeBackend(store))
    assert replay(run_dir, URI, backend=FakeBackend(store)).remaining == 0
    assert len(store.sent) == 2
    assert store.steps("run-1") == list(range(1, 11))
    assert list(store.metrics) == ["run-1"]


def test_replay_to_a_second_tracker_copies_the_run_once_and_leaves_the_first_in_charge(
    tmp_path: Path,
) -> None:
    run_dir, spool = new_run(tmp_path)
    first, second = Store(), Store()
    with tracker_of(run_dir, FakeBackend(first)):
        train(spool, range(1, 301))
        finish(spool, 300)
    counts: list[int] = []
    result = replay(run_dir, "http://second", backend=FakeBackend(second), progress=counts.append)
    assert (result.sent, result.remaining, result.run_id, result.uri) == (303, 0, "run-1", "http://second")
    assert counts == sorted(counts)
    assert counts[-1] == 303
    assert (second.metrics, second.params, second.tags, second.status) == (
        first.metrics,
        first.params,
        first.tags,
        first.status,
    )
    assert replay(run_dir, "http://second", backend=FakeBackend(second)).sent == 0
    assert replay(run_dir, backend=FakeBackend(first)).uri == URI
    assert first.opened == [None]


def test_a_replay_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 1001))
    store = Store()
    with pytest.raises(TrackingError, match=r"Sent: \d+, still to send: \d+") as caught:
        replay(run_dir, URI, backend=FakeBackend(store, before=fail_on(lambda call: call == 4)))
    assert "http://tracker" in str(caught.value)
    before = len(store.sent)
    assert before > 0
    result = replay(run_dir, URI, backend=FakeBackend(store))
    assert 0 < result.sent < 1001
    assert store.steps("run-1") == list(range(1, 1001))


def test_replay_of_what_is_no_run_or_to_what_is_no_address_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no events.jsonl"):
        replay(tmp_path, URI)
    run_dir, _ = new_run(tmp_path)
    with pytest.raises(TrackingError, match="no MLflow store"):
        replay(run_dir, "nonsense://host")


def test_a_tracker_whose_run_is_being_sent_by_another_stands_back(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    with sending(run_dir):
        tracker = tracker_of(run_dir, FakeBackend(store)).start()
        train(spool, range(1, 4))
        result = tracker.close(timeout=60)
    assert store.calls == 0
    assert result.unsent == 4
    assert "another process" in (result.problem or "")


def test_without_mlflow_the_events_are_kept_and_the_install_command_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mlflow_module.sys.modules, "mlflow", None)
    monkeypatch.delitem(mlflow_module.sys.modules, "mlflow")
    monkeypatch.setattr(mlflow_module.importlib.util, "find_spec", lambda name: None)
    run_dir, spool = new_run(tmp_path)
    tracker = Tracker(run_dir, uri=URI).start()
    train(spool, range(1, 4))
    result = tracker.close()
    assert result.unsent == 4
    assert "pip install 'snugfit[mlflow]'" in (result.message(run_dir) or "")
    with pytest.raises(MissingExtra, match="pip install"):
        replay(run_dir, URI)


def test_a_backend_that_cannot_even_be_made_is_only_a_problem_to_report(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)

    def broken(uri: str, experiment: str) -> FakeBackend:
        wait_until(lambda: tracker._asked == 1)
        raise ImportError("broken installation")

    tracker = Tracker(run_dir, uri=URI, backend=broken, interval_seconds=0.005).start()
    train(spool, range(1, 4))
    problems: list[str | None] = []
    asking = threading.Thread(
        target=lambda: problems.append(tracker.flush(timeout=3600).problem), daemon=True
    )
    asking.start()
    wait_until(lambda: bool(problems))
    assert problems == ["broken installation"]
    assert tracker.close(timeout=60).unsent == 4


def test_a_run_that_writes_all_the_time_is_sent_at_intervals_and_not_line_by_line(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    store = Store()
    updates = iter(range(1, 10**9))
    backend = FakeBackend(store, after=lambda call: train(spool, [next(updates)]))
    tracker = Tracker(run_dir, uri=URI, backend=backend, interval_seconds=3600).start()
    tracker.flush(timeout=60)
    assert len(store.sent) == 1
    tracker.flush(timeout=60)
    assert len(store.sent) == 2
    assert (
        tracker.close(timeout=60).sent == len(store.sent) == 3
    )  # what is written meanwhile is left to a replay


def test_batches_are_bounded(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 1001))
    store = Store()
    replay(run_dir, URI, backend=FakeBackend(store))
    sizes = [len(batch.metrics) for batch in store.sent]
    assert sum(sizes) == 3000
    assert max(sizes) <= 1000
    assert all(isinstance(batch, Batch) for batch in store.sent)


def test_a_locked_database_is_said_in_its_own_words_and_not_with_the_query(tmp_path: Path) -> None:
    database = pytest.importorskip("sqlalchemy").create_engine(
        f"sqlite:///{tmp_path}/locked.db", connect_args={"timeout": 0}
    )
    holder = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    holder.execute("create table runs (name)")
    holder.execute("begin exclusive")
    with pytest.raises(Exception, match="SQL") as raised, database.connect() as connection:
        connection.exec_driver_sql("select name from runs")
    assert reason(raised.value) == "database is locked"
    holder.close()


def test_what_a_client_cannot_end_is_said_and_what_is_written_meanwhile_is_not_missed(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)

    class Late(FakeBackend):
        def close(self) -> None:
            spool.append("warning", message="of another tracker")
            raise OSError("half of it is on the disk")

    train(spool, range(1, 4))
    tracker = tracker_of(run_dir, Late(Store()), uri="late").start()
    wait_until(lambda: tracker.flush(60).unsent == 0)
    tracker.begin_to_close()
    result = tracker.close(timeout=60)
    assert (result.unsent, result.unfinished) == (0, "late: half of it is on the disk")
    assert result.message(run_dir) == "late: half of it is on the disk"
