from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from snugfit.errors import RunFolderError
from snugfit.tracking import spool as module
from snugfit.tracking.spool import Spool, read_events


def kinds(path: Path, *, raw: bool = False) -> list[tuple[str, int | None]]:
    return [(event["event"], event.get("update")) for event in read_events(path, raw=raw)]


def test_values_of_numpy_torch_and_pathlib_are_written_as_plain_json(tmp_path: Path) -> None:
    with Spool(tmp_path / "events.jsonl") as spool:
        spool.append(
            "update",
            numpy_scalar=numpy.float32(0.5),
            numpy_int=numpy.int64(3),
            torch_scalar=torch.tensor(0.25, dtype=torch.bfloat16),
            array=numpy.arange(3),
            path=tmp_path / "x",
            names=frozenset({"b", "a"}),
        )
    (event,) = read_events(tmp_path / "events.jsonl")
    assert isinstance(event.pop("time"), float)
    assert event == {
        "event": "update",
        "numpy_scalar": 0.5,
        "numpy_int": 3,
        "torch_scalar": 0.25,
        "array": [0, 1, 2],
        "path": str(tmp_path / "x"),
        "names": ["a", "b"],
    }


def test_non_finite_numbers_are_strict_json_in_the_file_and_numbers_in_the_metrics_read_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    metrics = {
        "loss": math.nan,
        "norm": numpy.float32("inf"),
        "low": torch.tensor(-math.inf),
        "nested": {"x": [math.inf]},
    }
    with Spool(path) as spool:
        spool.append("update", update=1, metrics=metrics, label="NaN")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    written = json.loads(path.read_text(), parse_constant=refuse)
    assert written["metrics"] == {
        "loss": "NaN",
        "norm": "Infinity",
        "low": "-Infinity",
        "nested": {"x": ["Infinity"]},
    }
    (event,) = read_events(path)
    assert math.isnan(event["metrics"].pop("loss"))
    assert event["metrics"] == {"norm": math.inf, "low": -math.inf, "nested": {"x": [math.inf]}}
    assert event["label"] == "NaN", "only metrics are numbers; a label may be called NaN"


@pytest.mark.parametrize(
    "event",
    [
        {"event": "update", "update": 3, "epoch": 1 / 3, "applied": True, "metrics": {"loss": 1e-30, "a": 7}},
        {
            "event": "run",
            "name": "Größe",
            "path": Path("a"),
            "list": [1, None, (2.5, "x")],
            "n": numpy.float32(2),
        },
        {"event": "evaluation", "metrics": {1: 2.0, "set": {3, 1}, "tensor": torch.ones(2)}},
    ],
    ids=["update", "run", "evaluation"],
)
def test_a_line_is_what_jsons_own_encoder_writes(event: dict[str, Any]) -> None:
    assert module._in_c is not None  # else it is written by that one, and takes longer
    assert module._encode(event) == module._encoder.encode(event)
    for number in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not JSON compliant"):
            module._encode({**event, "loss": number})


def test_an_event_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: writes.append(data) or write(fd, data))
    with Spool(tmp_path / "events.jsonl") as spool:
        for update in range(3):
            spool.append("update", update=update)
    assert [line.endswith(b"}\n") and line.count(b"\n") == 1 for line in writes] == [True] * 3


def test_a_file_cut_anywhere_in_its_last_line_keeps_the_others_and_is_continued_on_a_fresh_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        spool.append("update", update=1)
        spool.append("update", update=2)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first, len(whole)):
        path.write_bytes(whole[:cut])
        is_torn = first < cut < len(whole) - 1
        second = (
            [("update", 2)] if cut == len(whole) - 1 else []
        )  # only the newline is missing: the event is whole
        assert kinds(path) == [("update", 1), *second]
        assert read_events(path).ignored == int(is_torn)
        with Spool(path) as spool:
            spool.append("update", update=3)
            spool.append("update", update=4)
        assert kinds(path) == [("update", 1), *second, ("update", 3), ("update", 4)], cut
        assert read_events(path).ignored == int(is_torn)


@pytest.mark.parametrize(
    "garbage",
    [b"[1]\n", b"null\n", b'{"time":1}\n', b'{"event":3}\n', b"\x00\x00\xff\n", b"[" * 99999 + b"\n"],
)
def test_a_line_that_is_no_event_is_ignored_and_counted(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        spool.append("update", update=1)
    path.write_bytes(path.read_bytes() + garbage + b'{"event":"end","time":1}\n')
    assert kinds(path) == [("update", 1), ("end", None)]
    assert read_events(path).ignored == 1


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:

        def write(thread: int) -> None:
            for number in range(300):
                spool.append("update", thread=thread, number=number, padding="x" * number)

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = read_events(path)
    assert events.ignored == 0
    for thread in range(4):
        assert [event["number"] for event in events if event["thread"] == thread] == list(range(300))


def test_what_a_killed_process_wrote_is_all_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = (
        "import sys; from snugfit.tracking.spool import Spool; spool = Spool(sys.argv[1]); n = 0\n"
        "while True:\n"
        "    spool.append('update', update=n, window=n); n += 1\n"
        "    print(n, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(200):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    acknowledged = 200 + len([line for line in process.stdout.read().split("\n") if line.strip()])
    process.wait()
    updates = [event["update"] for event in read_events(path)]
    assert updates == list(range(len(updates)))
    assert len(updates) >= acknowledged - 1, "the last printed number may be torn, the events before it not"


def test_what_a_resume_repeats_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        for update in (1, 2, 3, 4):
            spool.append("update", update=update, window=update)
            spool.append("evaluation", update=update)
            spool.append("checkpoint", update=update, path=f"{update}")
        spool.append("warning", message="kept")
        spool.append("resume", update=2, window=2)
        spool.append("update", update=3, window=3)
        spool.append("end", status="finished")
    before = [(kind, update) for update in (1, 2) for kind in ("update", "evaluation", "checkpoint")]
    after = [("warning", None), ("resume", 2), ("update", 3), ("end", None)]
    assert kinds(path) == before + after
    assert len(read_events(path, raw=True)) == 12 + 4


def test_updates_go_by_their_window_because_skipped_windows_share_an_update_count(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        spool.append("update", update=1, window=1)
        spool.append("update", update=1, window=2, applied=False)
        spool.append("skipped", window=2, reason="non-finite loss")
        spool.append("resume", update=1, window=1)
    assert kinds(path) == [("update", 1), ("resume", 1)]


def test_a_second_resume_drops_again_and_leaves_what_came_before_the_first_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        for number, updates in enumerate(([1, 2, 3], [3, 4, 5], [5, 6])):
            if number:
                spool.append("resume", update=updates[0] - 1, window=updates[0] - 1)
            for update in updates:
                spool.append("update", update=update, window=update, attempt=number)
    attempts = [
        (event["update"], event["attempt"]) for event in read_events(path) if event["event"] == "update"
    ]
    assert attempts == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]


def test_a_value_that_is_not_json_raises_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with Spool(path) as spool:
        with pytest.raises(TypeError, match="object"):
            spool.append("update", value=object())
        assert path.read_bytes() == b""


def test_a_folder_that_cannot_be_written_and_a_missing_file_are_run_folder_errors(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        Spool(tmp_path / "file" / "events.jsonl")
    with pytest.raises(RunFolderError, match="is not the folder of a run: it has no none.jsonl"):
        read_events(tmp_path / "none.jsonl")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_events_that_a_full_disk_does_not_take_are_lost_only_when_the_file_is_closed() -> None:
    spool = Spool("/dev/full")
    spool.append("update", update=1)
    assert spool.problem == "No space left on device"
    with pytest.raises(RunFolderError, match=r"No space left on device; 1 of them are lost"):
        spool.close()


def test_events_wait_for_room_in_their_order_and_a_torn_one_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [70]

    def nearly_full(descriptor: int, line: bytes) -> int:
        part = line[: room[0]]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= len(part)
        return write(descriptor, part)

    spool = Spool(tmp_path / "events.jsonl")
    monkeypatch.setattr(os, "write", nearly_full)
    for number in range(4):
        spool.append("update", update=number)
    assert spool.problem == "No space left on device"
    assert [event["update"] for event in read_events(spool.path)] == [0]
    room[0] = 10**6
    spool.append("update", update=4)
    assert spool.problem is None
    assert [event["update"] for event in read_events(spool.path)] == [0, 1, 2, 3, 4]
    spool.close()


def test_events_that_no_memory_is_left_for_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snugfit.tracking.spool._MOST_WAITING_BYTES", 150)
    spool = Spool(tmp_path / "events.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", raises_full)
        for number in range(9):
            spool.append("update", update=number)
        spool.append("checkpoint", update=9)
    spool.close()
    found = read_events(spool.path)
    updates = [event["update"] for event in found if event["event"] == "update"]
    assert updates == [0, 1]
    assert [event["event"] for event in found[2:]] == ["checkpoint", "warning"]
    assert found[-1]["message"].startswith("7 events of updates are lost")


def raises_full(*arguments: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "events.jsonl")
    spool.close()
    spool.close()
    assert read_events(spool.path) == []
