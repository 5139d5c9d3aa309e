"""Streams: the examples of a plain loop, whoever asks for them and when, and what is wrong with a source."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from snugfit.data import stream as stream_module
from snugfit.data.files.row_stream import RowStream
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.stream import Stream, StreamedExamples, as_stream
from snugfit.errors import DataError, SettingError
from tests.oracles import streams as oracle


def numbers() -> Iterator[int]:
    yield from range(50)


def drawn() -> Iterator[tuple[float, float, float]]:
    for _ in range(40):
        yield random.random(), float(np.random.rand()), float(torch.rand(()))


class ByPass(IterableDataset):
    """Rows that are other ones in each pass, and the rows of one worker where there are several."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        step, first = (1, 0) if info is None else (info.num_workers, info.id)
        yield from range(100 * self.epoch + first, 100 * self.epoch + 10, step)


def streamed(
    source: Any, length: int = 200, *, buffer: int = 16, seed: int = 3, skip: int = 0
) -> StreamedExamples:
    return StreamedExamples(Stream(source, buffer), length, seed=seed, skip=skip)


@given(
    rows=st.integers(1, 40),
    buffer=st.integers(1, 12),
    seed=st.integers(0, 5),
    skip=st.integers(0, 3),
    asked=st.lists(st.integers(0, 99), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_examples_are_those_of_a_plain_loop_in_whatever_order_they_are_asked_for(
    rows: int, buffer: int, seed: int, skip: int, asked: list[int]
) -> None:
    if rows <= skip:
        return
    own = streamed(lambda: range(rows), 100, buffer=buffer, seed=seed, skip=skip)
    expected = oracle.run(lambda _: range(rows), buffer, seed, 100, skip)
    assert [own[number] for number in asked] == [expected[number] for number in asked]
    assert [own[number] for number in range(100)] == expected
    one_pass = expected[: rows - skip]
    assert sorted(one_pass) == list(range(skip, rows))[: len(one_pass)]
    assert own.held_out() == list(range(skip))


def test_a_source_that_ends_begins_again_with_its_next_pass() -> None:
    own = streamed(ByPass(), 25, buffer=4)
    passes = [range(100 * epoch, 100 * epoch + 10) for epoch in range(3)]
    assert [own[number] for number in range(25)] == oracle.run(lambda epoch: passes[epoch], 4, 3, 25)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_load_the_windows_of_one_process(workers: int) -> None:
    loader = Loader(
        streamed(ByPass(), 24, buffer=4), Order(24, 3, seed=0, shuffle=False), num_workers=workers
    )
    read = [window.data.tolist() for window in loader.windows(2, 8)]
    expected = oracle.run(lambda epoch: range(100 * epoch, 100 * epoch + 10), 4, 3, 24)
    assert read == [expected[start : start + 3] for start in range(6, 24, 3)]


def test_a_data_set_that_parts_its_rows_among_workers_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    info = type("Info", (), {"num_workers": 2, "id": 1})()
    monkeypatch.setattr("torch.utils.data._utils.worker._worker_info", info)
    own = streamed(ByPass(), 10, buffer=1)
    assert [own[number] for number in range(10)] == list(range(10))
    assert get_worker_info() is info


def test_what_a_source_draws_is_the_same_from_wherever_it_is_read() -> None:
    torch.manual_seed(1)
    whole = [streamed(drawn, 70)[number] for number in range(70)]
    state = random.getstate(), torch.get_rng_state()
    random.seed(5)
    torch.manual_seed(5)
    later, before = streamed(drawn, 70), (random.getstate(), torch.get_rng_state().tolist())
    assert [later[number] for number in (37, 3, 69)] == [whole[number] for number in (37, 3, 69)]
    assert before == (random.getstate(), torch.get_rng_state().tolist())
    assert len({*whole}) == 70 and state is not None
    assert streamed(drawn, 70, seed=4)[0] not in whole


def test_a_copy_for_another_process_reads_for_itself() -> None:
    own = streamed(numbers, 60)
    expected = [own[number] for number in range(60)]
    other = pickle.loads(pickle.dumps(own))
    assert [other[number] for number in range(20, 60)] == expected[20:]


def test_rows_that_differ_when_they_are_read_again_are_refused() -> None:
    rows = list(range(50))
    own = streamed(lambda: iter(rows), 50)
    _ = own[40]
    saved = own.position(41)
    assert saved is not None and own.position(50) is None
    again = streamed(lambda: iter(rows), 50)
    again.go_on(41, saved)
    assert [again[number] for number in (41, 0)] == [own[number] for number in (41, 0)], "also one before"
    streamed(lambda: [*rows[:48], -1, -2], 50).go_on(41, saved)  # not read by then
    for changed in ([*rows[:30], -1, *rows[31:]], rows[1:], rows[:20]):
        with pytest.raises(DataError) as error:
            streamed(lambda changed=changed: iter(changed), 50).go_on(41, saved)
        assert "other rows when it was read again" in str(error.value)


@pytest.mark.parametrize("buffer", [1, 8])
def test_a_source_that_fails_is_told_with_its_row(buffer: int) -> None:
    def failing() -> Iterator[int]:
        yield from range(37)
        raise ValueError("the disk is gone")

    own = streamed(failing, 100, buffer=buffer)
    read = [own[number] for number in range(32 if buffer > 1 else 37)]
    assert sorted(read) == list(range(len(read)))
    for _ in range(2):
        with pytest.raises(DataError) as error:
            own[len(read)]
        assert "failing failed at row 38" in str(error.value) and "the disk is gone" in str(error.value)
    assert own[0] == read[0]


def test_a_stream_without_rows_is_told() -> None:
    with pytest.raises(DataError) as error:
        streamed(lambda: iter(()))[0]
    assert "has no rows" in str(error.value)
    with pytest.raises(DataError) as error:
        streamed(lambda: range(5), skip=5)[0]
    assert "hold out fewer" in str(error.value)
    with pytest.raises(DataError) as error:
        streamed(lambda: range(5), skip=5).held_out()
    assert "takes the first 5 rows" in str(error.value)


def test_what_can_be_read_once_is_refused() -> None:
    with pytest.raises(SettingError) as error:
        as_stream(numbers())
    assert "can be read once" in str(error.value)
    assert as_stream([1]) is None and as_stream({1: 2}) is None
    assert as_stream(numbers) == Stream(numbers) and as_stream(Stream(numbers, 1)) == Stream(numbers, 1)
    for buffer in (0, True, 1.5):
        with pytest.raises(SettingError):
            Stream(numbers, buffer)  # type: ignore[arg-type]


def test_a_data_set_of_hugging_face_streams_its_rows(tmp_path: Path) -> None:
    for shard in range(2):
        lines = [json.dumps({"n": number}) for number in range(shard * 20, shard * 20 + 20)]
        (tmp_path / f"{shard}.jsonl").write_text("\n".join(lines))
    files = sorted(str(path) for path in tmp_path.glob("*.jsonl"))
    source = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    stream = as_stream(source.shuffle(seed=0, buffer_size=8))
    assert stream is not None
    own = StreamedExamples(stream, 80, seed=0)
    read = [row["n"] for row in (own[number] for number in range(80))]
    assert sorted(read[:40]) == sorted(read[40:]) == list(range(40))
    assert read[:40] != read[40:]
    assert [row["n"] for row in (StreamedExamples(stream, 80, seed=0)[number] for number in (63, 5))] == [
        read[63],
        read[5],
    ]


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled by the library"])
def test_a_data_set_of_hugging_face_goes_on_where_it_was_unless_that_would_lose_rows(
    shuffled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state leaves out what is in its own buffer: then the rows are others, and all are read again."""
    lines = [json.dumps({"n": number}) for number in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    file = str(tmp_path / "a.jsonl")
    plain = datasets.load_dataset("json", data_files=file, split="train", streaming=True)

    def made() -> StreamedExamples:
        source = plain.shuffle(seed=0, buffer_size=8) if shuffled else plain.take(60)
        return StreamedExamples(Stream(source, 8), 120, seed=0)

    whole = made()
    read = [whole[number]["n"] for number in range(120)]
    position = json.loads(json.dumps(whole.position(100)))
    again, taken = made(), list[Any]()
    rows_of = stream_module.rows_of
    monkeypatch.setattr(
        stream_module,
        "rows_of",
        lambda *own, **more: (taken.append(row) or row for row in rows_of(*own, **more)),
    )
    again.go_on(100, position)
    assert (len(taken) > 60) == shuffled and len(taken) >= 8
    assert [again[number]["n"] for number in (*range(100, 120), 5)] == [*read[100:], read[5]]


class Counted:
    """Rows that can be begun at a place, as an object that stays between passes."""

    def __init__(self) -> None:
        self.begin = self.at = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.begin, 40):
            self.at = number + 1
            yield number

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int] | None) -> None:
        self.begin = 0 if state is None else state["at"]


def test_who_went_on_has_the_positions_of_who_did_not_also_in_the_block_that_it_began_with() -> None:
    """A source says where it was when it was read last, until its first row is asked for."""
    whole, again = (StreamedExamples(Stream(Counted(), 8), 100, seed=0) for _ in range(2))
    read = [(whole[number], again[number]) for number in range(100)]
    position = json.loads(json.dumps(whole.position(50)))
    assert position[-1] == {"at": 8}
    again.go_on(50, position)
    assert json.loads(json.dumps(again.position(50))) == position
    assert [again[number] for number in range(50, 100)] == [row for row, _ in read[50:]]


def test_an_object_of_a_module_that_went_on_begins_its_next_pass_at_its_first_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows_that_stay.py").write_text(
        "from tests.unit.data.test_stream import Counted\n"
        "class Rows(Counted):\n"
        "    def __iter__(self):\n"
        "        return ({'n': number} for number in super(Rows, self).__iter__())\n"
        "rows = Rows()\n"
    )
    monkeypatch.delitem(sys.modules, "rows_that_stay", raising=False)

    def made() -> StreamedExamples:
        rows = RowStream("rows_that_stay:rows", setting="data.train", folder=tmp_path)
        return StreamedExamples(Stream(rows, 8), 100, seed=0)

    whole, again = made(), made()
    read = [whole[number] for number in range(100)]
    again.go_on(50, json.loads(json.dumps(whole.position(50))))
    assert [again[number] for number in range(50, 100)] == read[50:]


def test_a_source_that_cannot_be_sent_to_its_beginning_is_read_again_and_does_not_fail_in_the_next_pass() -> (
    None
):
    class NeedsState(Counted):
        def load_state_dict(self, state: dict[str, int] | None) -> None:
            assert state is not None
            self.begin = state["at"]

    whole, again = (StreamedExamples(Stream(NeedsState(), 8), 100, seed=0) for _ in range(2))
    read = [whole[number] for number in range(100)]
    again.go_on(20, json.loads(json.dumps(whole.position(20))))
    assert [again[number] for number in range(20, 100)] == read[20:]
