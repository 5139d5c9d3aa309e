from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.tracking import spool as module
from snugfit.tracking.pending import Pending, Thinning
from snugfit.tracking.spool import Spool, read_events


def read_all(path: Path, *, max_events: int = 200, limit_bytes: int = 1 << 20) -> list[dict[str, object]]:
    pending, thinning, offset, events = Pending(path, 0), Thinning(), 0, []
    while pending.has_more(offset):
        chunk = pending.read(offset, thinning, max_events=max_events, limit_bytes=limit_bytes)
        if chunk.offset == offset:
            break
        events += chunk.events
        offset = chunk.offset
    return events


@pytest.mark.parametrize(
    "sizes", [{"max_events": 1}, {"max_events": 7}, {"limit_bytes": 1}, {"limit_bytes": 300}, {}]
)
def test_chunks_of_any_size_give_what_the_reader_gives(tmp_path: Path, sizes: dict[str, int]) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        for update in range(1, 20):
            spool.append("update", update=update, window=update, metrics={"loss": 1.0})
        spool.append("resume", update=12, window=12)
        for update in range(13, 25):
            spool.append("update", update=update, window=update, metrics={"loss": 2.0})
        spool.append("resume", update=20, window=20)
        spool.append("end", status="finished")
    assert read_all(path, **sizes) == list(read_events(path))
    assert len(read_all(path)) == 12 + 8 + 3


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"event":"update","time":1.0,"update":1,"metrics":{}}\n'
    path.write_bytes(line + line[:20])
    pending = Pending(path, 0)
    chunk = pending.read(0, Thinning())
    assert (len(chunk.events), chunk.offset) == (1, len(line))
    assert pending.read(chunk.offset, Thinning()).offset == len(line)
    assert pending.count(0) == 1
    path.write_bytes(line + line)
    assert len(pending.read(chunk.offset, Thinning()).events) == 1


def test_lines_that_come_in_while_it_looks_for_resumes_wait_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "events.jsonl")
    spool.append("update", update=1, window=1, metrics={})
    pending = Pending(spool.path, 0)
    scan = pending._scan_resumes

    def scan_and_then_write() -> None:
        scan()
        spool.append("update", update=2, window=2, metrics={})
        spool.append("resume", update=1, window=1)
        monkeypatch.undo()

    monkeypatch.setattr(pending, "_scan_resumes", scan_and_then_write)
    first = pending.read(0, Thinning())
    second = pending.read(first.offset, Thinning())
    assert [event["event"] for event in first.events + second.events] == ["update", "resume"]


def test_a_fast_loop_is_thinned_after_a_burst_and_evaluations_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "events.jsonl"
    clock = iter(range(10**9))
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + next(clock) / 500)
    with Spool(path) as spool:
        for update in range(5000):  # 500 events a second for 20 seconds, one evaluation after each update
            spool.append("update", update=update, window=update, metrics={"loss": 1.0})
            spool.append("evaluation", update=update, metrics={"accuracy": 1.0})
    kinds = [event["event"] for event in read_all(path)]
    assert kinds.count("evaluation") == 5000
    assert 1000 + 10 * 20 - 2 <= kinds.count("update") <= 1000 + 10 * 20 + 2
    assert read_all(path, max_events=13) == read_all(path), "the choice does not depend on how it is read"


def test_a_slow_run_is_sent_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    clock = iter(range(10**9))
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + next(clock) / 9)
    with Spool(path) as spool:
        for update in range(3000):
            spool.append("update", update=update, window=update, metrics={"loss": 1.0})
    assert len(read_all(path)) == 3000
