"""Shards are read as the files that were put into them, and each way in which they can be broken is told."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from snugfit.data.picture_files import read_pictures
from snugfit.data.shards import find_shards, is_member, open_file
from snugfit.data.sound_files import read_sounds, seconds_of
from snugfit.data.sources import read_table
from snugfit.data.text import TextSettings
from snugfit.data.usable_rows import part_of_table
from snugfit.errors import DataError


def write(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as shard:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            shard.addfile(about, io.BytesIO(content))
    return path


def picture(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (6, 4), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def sound(seconds: float) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(int(8000 * seconds)), 8000, format="WAV")
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        members = {}
        for place in range(2):
            key = f"{2 * number + place:03}"
            members |= {
                f"{key}.png": picture(40 * number + place),
                f"{key}.cls": b"%d\n" % place,
                f"{key}.json": json.dumps({"source": f"camera {number}"}).encode(),
            }
        write(tmp_path / f"train-{number:02}.tar", members)
    return tmp_path


def test_members_alike_up_to_the_first_dot_are_one_row(folder: Path) -> None:
    table = read_table("train-{00..02}.tar")
    assert table.columns == ("__key__", "image", "label", "source")
    assert [row["__key__"] for row in table.rows] == [f"{number:03}" for number in range(6)]
    assert table.rows[3] == {
        "__key__": "003",
        "image": "train-01.tar/003.png",
        "label": "1",
        "source": "camera 1",
    }


@pytest.mark.parametrize("name", ["train-*.tar", ".", "train-{00..02}.tar", "train-0[0-2].tar"])
def test_a_range_a_pattern_and_a_folder_name_the_same_shards(folder: Path, name: str) -> None:
    shards = find_shards(name, "data.train")
    assert shards is not None
    assert shards.names == ("train-00.tar", "train-01.tar", "train-02.tar")
    assert read_table(name).rows == read_table("train-{00..02}.tar").rows if name != "." else True


def test_a_member_has_the_bytes_of_the_file_that_was_put_there(folder: Path) -> None:
    path = folder / "train-01.tar" / "002.png"
    with open_file(path) as file:
        assert file.read() == picture(40)
        file.seek(-4, io.SEEK_END)
        assert file.read() == picture(40)[-4:] and file.read() == b""
        assert file.seek(1) == 1 and file.read(3) == b"PNG"
    assert is_member(path) and not is_member(folder / "train-01.tar")
    with pytest.raises(OSError, match="001.png"):  # of another shard
        open_file(folder / "train-01.tar" / "001.png")


def test_texts_have_their_columns(tmp_path: Path) -> None:
    members = {"a/1.txt": b"warm", "a/1.cls": b"yes\n", "a/2.txt": b"cold", "a/2.cls": b"no", "notes": b"-"}
    table = read_table(write(tmp_path / "texts.tar", members))
    assert table.rows == [
        {"__key__": "a/1", "text": "warm", "label": "yes"},
        {"__key__": "a/2", "text": "cold", "label": "no"},
    ]


def test_several_files_of_an_example_have_columns_of_their_names(tmp_path: Path) -> None:
    members = {"1.left.png": picture(1), "1.right.PNG": picture(2), "1.npy": b"", "1.about.json": b"[1, 2]"}
    table = read_table(write(tmp_path / "a.tar", members))
    assert table.rows == [
        {
            "__key__": "1",
            "left": "a.tar/1.left.png",
            "right": "a.tar/1.right.PNG",
            "npy": "a.tar/1.npy",
            "about": [1, 2],
        }
    ]


def test_pictures_and_sounds_are_checked_as_files_are(tmp_path: Path) -> None:
    whole, cut = picture(7), picture(8)[:40]
    write(tmp_path / "p.tar", {"1.png": whole, "1.cls": b"a", "2.png": cut, "2.cls": b"b", "3.cls": b"a"})
    part, digests = read_pictures(tmp_path / "p.tar", "data.train", image="image", label="label")
    assert part.texts == [str(tmp_path / "p.tar" / "1.png")] and part.labels == ["a"] and len(digests) == 1
    assert [fault.reason for fault in part.faults] == ["unreadable picture", "empty text"]
    assert str(tmp_path / "p.tar" / "2.png") in part.faults[0].detail
    write(tmp_path / "s.tar", {"1.wav": sound(0.5), "1.cls": b"a", "2.wav": sound(0.5)[:-100], "2.cls": b"b"})
    part, _ = read_sounds(tmp_path / "s.tar", "data.train", audio="audio", label="label")
    assert [fault.reason for fault in part.faults] == ["truncated sound"]
    assert seconds_of([Path(part.texts[0])]) == [0.5]


def test_what_is_looked_at_is_in_the_digest(tmp_path: Path) -> None:
    def digest(content: bytes, name: str = "1.txt") -> str:
        return read_table(write(tmp_path / "a.tar", {name: content})).sha256

    assert digest(b"warm") == digest(b"warm")
    assert len({digest(b"warm"), digest(b"cold"), digest(b"warm", "2.txt")}) == 3


def test_texts_that_cannot_be_read_are_faults_of_their_rows(tmp_path: Path) -> None:
    members = {
        "1.txt": b"\xff",
        "2.json": b"{",
        "3.json": b"[]",
        "4.txt": b"a",
        "4.json": b'{"text": "b"}',
        "5.txt": b"warm",
    }
    table = read_table(write(tmp_path / "a.tar", members))
    assert [row["text"] for row in table.rows] == ["warm"]
    assert [(fault.place, fault.reason) for fault in table.faults] == [
        ("a.tar/1", "not UTF-8"),
        ("a.tar/2", "broken JSON"),
        ("a.tar/3", "broken JSON"),
        ("a.tar/4", "two values of a column"),
    ]


def test_a_row_of_a_text_task_may_come_from_a_shard(tmp_path: Path) -> None:
    settings = TextSettings(train=tmp_path / "a.tar", text=("text",), label="label")
    table = read_table(write(tmp_path / "a.tar", {"1.txt": b"warm", "1.cls": b"yes"}))
    part = part_of_table(table, settings.text, "label", None)
    assert (part.texts, part.labels) == (["warm"], ["yes"])


def cut_short(path: Path) -> None:
    content = write(path, {"1.txt": b"x" * 5000, "2.txt": b"y" * 5000}).read_bytes()
    path.write_bytes(content[:7000])


def twice(path: Path) -> None:
    with tarfile.open(path, "w") as shard:
        for _ in range(2):
            shard.addfile(tarfile.TarInfo("1.txt"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (cut_short, "a.tar is no tar file that can be read to its end"),
        (lambda path: path.write_bytes(b"not a tar" * 200), "a.tar is no tar file that can be read"),
        (twice, "a.tar has two members named 1.txt"),
        (lambda path: write(path, {"notes": b"-", ".x.txt": b"-"}), "holds no example"),
    ],
)
def test_a_shard_that_cannot_be_read_is_one_error(tmp_path: Path, break_it: object, message: str) -> None:
    assert callable(break_it)
    break_it(tmp_path / "a.tar")
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "a.tar", setting="data.train")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.tar", "data.train: there is no file .*none.tar. Correct the name"),
        ("train-{00..04}.tar", "there is no file .*train-03.tar and 1 more"),
        ("other-*.tar", r"there is no file .*other-\*.tar"),
        ("train-00.tar.gz", "data.train: train-00.tar.gz is compressed as a whole"),
    ],
)
def test_shards_that_are_not_there_are_named(folder: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        find_shards(name, "data.train")


def test_a_folder_without_shards_and_other_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\nwarm\n")
    assert (
        find_shards(tmp_path, "data.train") is None and find_shards(tmp_path / "a.csv", "data.train") is None
    )
