"""Rows of a large file stay in it: what is read of them, and made of them, is what is read of a small one."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from snugfit.data import sources
from snugfit.data.files import json_lists
from snugfit.data.files.rows_in_order import is_json_list
from snugfit.data.lazy import spooled_rows
from snugfit.data.lazy.lazy_rows import LineRows
from snugfit.data.lazy.spooled_rows import SpooledRows
from snugfit.data.lazy.unnamed_file import UnnamedFile
from snugfit.data.named_sources import sources_of
from snugfit.data.sources import Table, read_table
from snugfit.data.texts import spooled_numbers
from snugfit.data.texts.causal import CausalSettings, load_causal
from snugfit.data.texts.spooled_numbers import SpooledNumbers
from snugfit.errors import DataError
from tests.unit.data.shard_files import write_shard

LINES = [
    '{"text": "a good film", "id": 1}',
    "",
    '{"text": "é\u2028", "more": null}\r',
    '{"text": "broken"',
    "[1]",
    '{"text": "a bad book"}',
]


def both(path: Any, monkeypatch: pytest.MonkeyPatch, folder: Path | None = None) -> tuple[Table, Table]:
    """A source as it is read into memory, and as a large one."""
    whole = read_table(path, folder=folder)
    monkeypatch.setattr(sources, "LARGE_FILE", 1)
    return whole, read_table(path, folder=folder)


def seen(table: Table) -> list[Any]:
    places = [table.place(row) for row in range(len(table.rows))]
    return [table.columns, list(table.rows), list(table.lines), table.faults, table.sha256, places]


@pytest.mark.parametrize("begins", ["", "\ufeff"])
@pytest.mark.parametrize("ends", ["", "\n"])
def test_rows_lines_and_faults_are_those_of_a_file_in_memory(
    write: Any, monkeypatch: pytest.MonkeyPatch, begins: str, ends: str
) -> None:
    path = write(
        "a.jsonl", begins.encode() + "\n".join(LINES).encode() + b'\n{"text": "\xff"}' + ends.encode()
    )
    whole, large = both(path, monkeypatch)
    assert isinstance(large.rows, LineRows) and isinstance(whole.rows, list)
    assert seen(large) == seen(whole) and len(large.faults) == 3
    assert large.rows[-1] == whole.rows[-1] and large.rows[0:2] == whole.rows[0:2]
    assert list(pickle.loads(pickle.dumps(large.rows))) == whole.rows


def test_a_file_that_changes_while_its_rows_are_read_gives_no_other_rows(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(write("a.jsonl", "".join(f'{{"text": "row {number}"}}\n' for number in range(4))))
    whole, large = both(str(path), monkeypatch)
    sent, written = pickle.dumps(large.rows), path.read_text()
    for changed in (written.replace("row", "ROW"), written[:30], "x" * len(written)):
        path.write_text(changed)
        with pytest.raises(DataError, match=r"a\.jsonl: was changed while its rows were read"):
            large.rows[3]
    path.write_text(written)
    assert list(large.rows) == whole.rows
    path.rename(path.with_name("b.jsonl"))
    assert list(large.rows) == whole.rows, "the file that was looked through is read on"
    with pytest.raises(DataError, match="was changed"):
        pickle.loads(sent)
    path.write_text(written.replace("row", "ROW"))
    with pytest.raises(DataError, match="was changed"):
        list(pickle.loads(sent))


ENTRIES = [{"text": 'a [good] "film"', "id": [1, {"x": 2}]}, 7, {"text": "é\u2028", "more": None}]
FILES = {
    "a.csv": b'text;label\r\n"two\nlines; ""quoted""";x\r\n\r\nragged\rone;y\r\ncaf\xe9;z\nopen "quote;w\n"never closed;u\n\xef\xbb\xbfmark;v',
    "a.tsv": b"\xef\xbb\xbftext\tlabel\na\tb\n",
    "a.txt": b"\xef\xbb\xbfone\r\n\ncaf\xe9\nfour",
    "a.json": b" \n " + json.dumps(ENTRIES, indent=1).encode() + b"\n\n",
    "numbers.json": b'[ 12.5, {"text": 1}, 7e-5, -0.25, 1e5,3]',
    "lines.json": b'{"text": "a"}\n\n{"text": 2}\n[3]\n',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("in_memory", [1, 2**20])
def test_files_of_each_kind_have_the_rows_that_they_have_in_memory(
    write: Any, name: str, in_memory: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(spooled_rows, "IN_MEMORY", in_memory)
    monkeypatch.setattr(json_lists, "_BLOCK", 5)
    whole, large = both(write(name, FILES[name]), monkeypatch)
    assert seen(large) == seen(whole) and not isinstance(large.rows, list)
    assert large.rows[-1] == whole.rows[-1] and list(pickle.loads(pickle.dumps(large.rows))) == whole.rows
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file()], "the file has no name"


def test_rows_of_parquet_and_of_functions_are_put_aside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from pyarrow import table

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [{"text": f"row {number}", "tags": [number, None]} for number in range(700)]
    path = tmp_path / "a.parquet"
    columns = {name: [row[name] for row in rows] for name in ("text", "tags")}
    parquet.write_table(table(columns), path, row_group_size=300)
    for source in (path, lambda: iter(rows)):
        with monkeypatch.context() as patch:
            patch.setattr(spooled_rows, "IN_MEMORY", 4096)
            whole, large = both(source, patch)
        assert seen(large) == seen(whole) and isinstance(large.rows, SpooledRows)
        assert list(whole.rows) == rows


def test_rows_of_shards_are_put_aside_with_their_names_and_faults(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for shard in range(2):
        rows = {f"{row}.json": json.dumps({"text": f"{shard} {row}"}) for row in range(3)}
        write_shard(tmp_path / f"s-{shard}.tar", {**rows, "bad.json": "{", "last.txt": "the end"})
    whole, large = both(str(tmp_path / "s-{0..1}.tar"), monkeypatch)
    assert isinstance(large.rows, SpooledRows) and isinstance(whole.rows, list)
    assert seen(large) == seen(whole) and large.base == whole.base and len(large.faults) == 2
    assert large.rows[3] == {"text": "the end"} and large.place(3)[0].endswith("last")


def test_rows_that_cannot_be_pickled_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"at": at, "make": (lambda: 0) if at % 2 else None} for at in range(9)]
    monkeypatch.setattr(spooled_rows, "IN_MEMORY", 64)
    whole, large = both(lambda: iter(rows), monkeypatch)
    assert isinstance(large.rows, SpooledRows)
    assert list(large.rows) == list(whole.rows) == rows and len(large.rows) == 9


def test_a_disk_that_fills_while_rows_are_put_aside_leaves_them_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(spooled_rows, "IN_MEMORY", 64)
    resource = pytest.importorskip("resource")
    rows, every, before = SpooledRows(), [], resource.getrlimit(resource.RLIMIT_FSIZE)
    tries = []
    write = UnnamedFile._write
    monkeypatch.setattr(
        UnnamedFile, "_write", lambda self, parts: (tries.append(len(rows)), write(self, parts))
    )
    try:
        for number in range(40):
            every.append({"text": f"row {number}"})
            rows.add(every[-1])
            if number == 9:
                resource.setrlimit(resource.RLIMIT_FSIZE, (400, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(rows) == every
    assert os.fstat(rows._file._file.fileno()).st_size == rows._file.size == rows._ends[-1] > 0
    assert tries[-1] < 30, "each try writes all rows that wait"


def test_rows_leave_room_on_the_disk_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(spooled_rows, "IN_MEMORY", 64)
    usage = shutil.disk_usage(".")
    for free, is_put_aside in ((1 << 29, False), (1 << 31, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        rows = SpooledRows()
        for number in range(20):
            rows.add({"at": number})
        assert (rows._file.size > 0) is is_put_aside
        assert [row["at"] for row in rows] == list(range(20))


def test_a_file_that_changes_while_its_rows_are_put_aside_is_an_error(
    write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(write("a.csv", "text\none\ntwo\n"))
    add = SpooledRows.add

    def added(self: SpooledRows, row: Any) -> None:
        path.write_text("text\nthree\n")
        add(self, row)

    monkeypatch.setattr(SpooledRows, "add", added)
    monkeypatch.setattr(sources, "LARGE_FILE", 1)
    with pytest.raises(DataError, match=r"a\.csv: was changed while its rows were read"):
        read_table(str(path))


def test_a_list_is_known_without_its_line(write: Any) -> None:
    path = Path(write("a.json", json.dumps([{"text": "x" * 100}] * 10_000)))
    tracemalloc.start()
    try:
        assert is_json_list(path)
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[{"a": 1},\n{"a": }]', 2),
        ('[{"a": 1}\n\n{"a": 2}]', 3),
        ('[\n{"a": 1}', 2),
        ('[{"a": 1},\n]', 2),
        ('[{"a": 1}]\n7', 2),
        ('[{"a": 1},\n{"a": }\n,\n\n{"a": 2}]', 2),
    ],
)
def test_a_large_list_that_is_broken_is_said_by_its_line(
    write: Any, content: str, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("a.json", content)
    for most in (2**20, 1):
        monkeypatch.setattr(sources, "LARGE_FILE", most)
        with pytest.raises(DataError, match=rf"a\.json is a JSON list that cannot be read on line {line}: "):
            read_table(path)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "txt", "json"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@example(content=b"\xef")  # the beginning of a mark of UTF-8, and no more
@given(content=st.binary(max_size=60) | st.text('",\n\ra;b[]{}1', max_size=40).map(str.encode))
def test_no_bytes_are_read_otherwise(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)

    def read(most: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources, "LARGE_FILE", most)
            try:
                return seen(read_table(path))
            except DataError as error:
                return str(error).partition(" is a JSON list that cannot be read")[0]

    assert read(0) == read(2**40)


def test_sources_with_other_names_of_columns_stay_in_their_files(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, column in (("a", "text"), ("b", "words")):
        write(f"{name}.jsonl", "".join(f"{json.dumps({column: f'{name} {n}'})}\n" for n in range(3)))
    written = {"a": "a.jsonl", "b": {"from": "b.jsonl", "rename": {"words": "text"}}}
    whole, large = both(sources_of(written), monkeypatch, tmp_path)
    assert seen(large) == seen(whole) and not isinstance(large.rows, list)
    assert list(pickle.loads(pickle.dumps(large.rows))) == whole.rows, (
        "as workers get them that are not forked"
    )
    assert [row["text"] for row in large.rows] == ["a 0", "a 1", "a 2", "b 0", "b 1", "b 2"]


def test_tokens_of_a_large_file_are_those_of_a_small_one(
    write: Any, make_tokenizer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = ["good", "bad", "film", "book"]
    texts = [" ".join(words[(n + at) % 4] for at in range(n % 7 + 1)) for n in range(40)]
    path = write("a.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in [*texts, texts[0]]))
    decoder = make_tokenizer("$A", eos_token="[SEP]")
    given = CausalSettings(path, validation=0.25, max_length=8)
    whole = load_causal(given, decoder)
    monkeypatch.setattr(sources, "LARGE_FILE", 1)
    monkeypatch.setattr(spooled_numbers, "IN_MEMORY", 8)
    large = load_causal(given, decoder)
    for side in ("train", "validation"):
        own, other = getattr(whole, side), getattr(large, side)
        assert list(own) == list(other) and own.lines == other.lines
    assert large.report == whole.report and large.fingerprints == whole.fingerprints
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file()], "few tokens are not kept"


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(st.sampled_from([0, 7, 300, -100, 70_000, 2**40]), max_size=6), max_size=9))
@pytest.mark.parametrize("writable", [True, False])
def test_numbers_that_are_put_aside_are_those_that_were_given(
    parts: list[list[int]], writable: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        if not writable:
            (folder / "snugfit").write_text("a file where the folder would be")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setattr(spooled_numbers, "IN_MEMORY", 4)
        patch.setattr(spooled_numbers, "_COPIED", 3)
        numbers = SpooledNumbers()
        for part in parts:
            numbers.add(np.array(part, dtype=np.int64))
        every = [number for part in parts for number in part]
        if parts:
            whole = numbers.whole()
            assert whole.tolist() == every
            assert not every or whole.dtype == spooled_numbers.kind_of(min(every), max(every))


def test_a_disk_that_fills_while_numbers_are_put_aside_leaves_them_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(spooled_numbers, "IN_MEMORY", 64)
    resource = pytest.importorskip("resource")
    numbers, every, before = SpooledNumbers(), [], resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for start in range(6):
            numbers.add(np.arange(start, start + 100))
            every += range(start, start + 100)
            if start == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (350, before[1]))
        assert numbers.whole().tolist() == every
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
