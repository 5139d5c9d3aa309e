"""Shards: rows by WebDataset's convention, members read at random, an index that is made once, and what is wrong with a tar file."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import soundfile
import torch

from snugfit.data.files import tar_members
from snugfit.data.files.file_kinds import is_shards
from snugfit.data.files.shards import expanded, read_shards, rows_of_shard, shard_patterns
from snugfit.data.files.tar_members import opened_file, tar_index
from snugfit.data.named_sources import sources_of
from snugfit.data.pictures.labelled_pictures import PictureSettings, load_pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.sounds.labelled_sounds import waveform
from snugfit.data.sounds.sound_files import seconds_of
from snugfit.data.sources import read_table
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.errors import DataError
from tests.oracles import shards as oracle
from tests.unit.data.shard_files import png, write_shard

FORMAT = PictureFormat(8, 8, None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache"


def forget() -> None:
    """As a process that starts later."""
    tar_members._index_at.cache_clear()
    tar_members._by_name.cache_clear()


def pictures(folder: Path) -> list[Path]:
    """Two shards of three and two pictures of three classes."""
    made = []
    for number, rows in enumerate(([0, 1, 2], [3, 4])):
        members: dict[str, bytes | str] = {}
        for row in rows:
            members[f"{row:03d}.png"] = png(row)
            members[f"{row:03d}.cls"] = f"{row % 3}\n"
        made.append(write_shard(folder / f"shapes-{number:03d}.tar", members))
    return made


def test_rows_are_those_of_a_plain_loop_over_the_members(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {
        "a/x.y/001.Seg.PNG": png(1),
        "a/x.y/001.jpg": png(2),
        "a/x.y/001.cls": "7",
        "a/002.json": json.dumps({"text": "näive", "label": 3, "tags": ["u"]}),
        "a/002.jpeg": png(3),
        "a/.hidden": "no row",
        "README": "no row",
        "a/003.txt": "one\ntwo",
        "a/003.index": "12",
        "b/003.json": "[1, 2]",
        "b/003.npy": b"\x93NUMPY",
        "a/003.cls2": "4",
    }
    files = [
        write_shard(tmp_path / "s-0.tar", members),
        write_shard(tmp_path / "s-1.tar", {"a/003.txt": "z"}),
    ]
    shards = read_shards("s-{0..1}.tar", "data", tmp_path)
    expected = oracle.rows(files)
    assert [name.partition(os.sep)[2] for name in shards.names] == [key for key, _ in expected]
    assert not shards.faults
    for row, (_, fields) in zip(shards.rows, expected, strict=True):
        assert {name: fields[name] for name in fields if name in row and name in ("npy", "seg.png")} == {
            name: opened_file(os.path.join(shards.base, row[name])).read()
            for name in row
            if name in ("npy", "seg.png")
        }
        for name in ("jpg", "jpeg", "png"):
            if name in fields:
                assert opened_file(os.path.join(shards.base, row["image"])).read() == fields[name]
        if "txt" in fields:
            assert row["text"] == fields["txt"].decode()
        for name, column in (("cls", "label"), ("cls2", "cls2"), ("index", "index")):
            if name in fields:
                assert row[column] == int(fields[name])
        if "json" in fields:
            value = json.loads(fields["json"])
            assert value == ({name: row[name] for name in value} if isinstance(value, dict) else row["json"])
    assert shards.rows[0]["label"] == 7 and shards.rows[1]["label"] == 3


def test_braces_are_those_of_a_shell() -> None:
    assert list(expanded("s-{008..011}.tar")) == [f"s-{number:03d}.tar" for number in range(8, 12)]
    assert list(expanded("{a,b}-{1..2}.tar")) == ["a-1.tar", "a-2.tar", "b-1.tar", "b-2.tar"]
    assert list(expanded("s-{9..11}.tar")) == ["s-9.tar", "s-10.tar", "s-11.tar"]
    assert list(expanded("plain.tar")) == ["plain.tar"]


def test_pictures_in_shards_are_those_in_a_folder(tmp_path: Path) -> None:
    pictures(tmp_path / "shards")
    for row in range(5):
        place = tmp_path / "folder" / str(row % 3)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{row}.png").write_bytes(png(row))
    loaded = {
        name: load_pictures(
            PictureSettings(str(tmp_path / name), validation=None, augment=()), FORMAT, folder=tmp_path
        )
        for name in ("shards", "folder")
    }
    assert loaded["shards"].labels == loaded["folder"].labels == ("0", "1", "2")

    def examples(name: str) -> list[tuple[int, bytes]]:
        train = loaded[name].train
        return sorted(
            (train[place]["labels"], train[place]["pixel_values"].numpy().tobytes()) for place in range(5)
        )

    assert examples("shards") == examples("folder")
    backwards = [loaded["shards"].train[place]["pixel_values"] for place in (4, 0, 2)]
    assert all(
        torch.equal(one, loaded["shards"].train[place]["pixel_values"])
        for one, place in zip(backwards, (4, 0, 2), strict=True)
    )
    assert loaded["shards"].train.rows.origin(3).endswith(os.path.join("shapes-001.tar", "003.png"))


def test_classes_of_shards_are_numbers_or_names(tmp_path: Path) -> None:
    members: dict[str, bytes | str] = {}
    for row, name in enumerate(["cat", "dog\n", "tabby cat", "dog"]):
        members |= {f"{row}.png": png(row), f"{row}.cls": name}
    write_shard(tmp_path / "s.tar", members)
    loaded = load_pictures(PictureSettings(str(tmp_path / "s.tar"), validation=None), FORMAT)
    assert loaded.labels == ("cat", "dog", "tabby cat")
    assert [loaded.train[place]["labels"] for place in range(4)] == [0, 1, 2, 1]
    write_shard(tmp_path / "t.tar", {"1.txt": "one", "1.index": "first", "2.txt": "two", "2.index": "2"})
    (fault,) = read_shards("t.tar", "data", tmp_path).faults
    assert fault.detail.endswith("t.tar/1.index cannot be read: 'first' is no whole number")


def test_an_index_is_made_once_and_known_by_what_the_file_holds(tmp_path: Path, own_cache: Path) -> None:
    (first, _) = pictures(tmp_path / "shards")
    expected = tar_index(str(first))
    assert [member.name for member in expected.members][:2] == ["000.png", "000.cls"]
    moved = tmp_path / "moved.tar"
    first.rename(moved)
    forget()
    with mock.patch.object(tarfile, "open", side_effect=AssertionError("read again")):
        assert tar_index(str(moved)) == expected
    (entry,) = (own_cache / "snugfit" / "shards").iterdir()
    entry.write_text("{")
    forget()
    assert tar_index(str(moved)) == expected
    write_shard(moved, {"9.txt": "another"})
    assert [member.name for member in tar_index(str(moved)).members] == ["9.txt"]


def test_an_index_that_cannot_be_kept_is_made_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, _) = pictures(tmp_path / "shards")
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(tar_index(str(first)).members) == 6


@pytest.mark.parametrize(
    ("cut", "detail", "left"),
    [
        (lambda content: content[: 512 * 5 + 100], "the shard ends in the middle of 001.txt", 1),
        (lambda content: content[: 512 * 4], "the shard was cut off behind its last member", 1),
        (lambda content: content[: 512 * 4 + 9], "the shard", 1),
        (lambda content: content[: 512 * 4] + b"x" * 512 + content[512 * 5 :], "the shard is damaged", 1),
    ],
    ids=["in a member", "between members", "in a header", "a damaged header"],
)
def test_a_shard_that_is_not_whole_is_a_fault_that_names_it(
    cut, detail: str, left: int, tmp_path: Path
) -> None:
    members = {
        f"{row:03d}.{field}": text
        for row in range(3)
        for field, text in (("txt", "good film " * 20), ("cls", "1"))
    }
    path = write_shard(tmp_path / "s.tar", members)
    path.write_bytes(cut(path.read_bytes()))
    shards = read_shards("s.tar", "data", tmp_path)
    assert len(shards.rows) == left
    (fault,) = shards.faults
    assert fault.place == "s.tar" and fault.detail.startswith(detail)


def test_bad_members_are_named_by_shard_and_key_and_left_out_where_asked_for(
    tmp_path: Path, tokenizer
) -> None:
    members: dict[str, bytes | str] = {}
    for row in range(6):
        members |= {f"{row:03d}.txt": "good film", f"{row:03d}.cls": str(row % 2)}
    members["006.txt"] = "no partner"
    members |= {"007.txt": b"\xff\xfe\x00", "007.cls": "1"}
    members |= {"008.txt": "a film", "008.cls": "one"}
    members |= {"009.json": "{", "009.txt": "a film"}
    members |= {"010.json": '{"text": "again"}', "010.txt": "a film"}
    write_shard(tmp_path / "s.tar", members)
    settings = {"train": str(tmp_path / "s.tar"), "validation": None, "max_length": 8, "text": ("text",)}
    with pytest.raises(DataError) as error:
        load_text(TextSettings(**settings), tokenizer)
    for key, detail in (
        ("006", "the row has no 'label'"),
        ("007", "is not UTF-8"),
        ("008", "the label 'one' is text, most labels are a whole number"),
        ("009", "cannot be read"),
        ("010", "gives column 'text', which it has already"),
    ):
        assert any(
            line.strip().startswith(f"{os.path.join('s.tar', key)}: ") and detail in line
            for line in str(error.value).splitlines()
        ), key
    data = load_text(TextSettings(**settings, bad_rows="skip"), tokenizer)
    assert len(data.train) == 6 and sum(data.report.skipped.values()) == 5
    assert data.train.origin(4) == os.path.join("s.tar", "004")


def test_shards_are_one_of_several_sources(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.tar", {"1.txt": "one", "2.txt": "two"})
    (tmp_path / "rows.jsonl").write_text('{"body": "three"}\n')
    written = {"s": {"from": "s.tar"}, "r": {"from": "rows.jsonl", "rename": {"body": "text"}}}
    table = read_table(sources_of(written), folder=tmp_path)
    assert [row["text"] for row in table.rows] == ["one", "two", "three"]
    assert [table.place(row) for row in range(3)] == [
        (os.path.join("s.tar", "1"), 0),
        (os.path.join("s.tar", "2"), 0),
        ("rows.jsonl", 1),
    ]


def test_sounds_are_read_from_shards(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "tone.flac", np.sin(np.arange(2000) / 20), 8000)
    write_shard(tmp_path / "s.tar", {"noise.flac": b"", "tone.flac": (tmp_path / "tone.flac").read_bytes()})
    inside = tmp_path / "s.tar" / "tone.flac"
    assert np.array_equal(
        waveform(str(inside), 8000, 3000), waveform(str(tmp_path / "tone.flac"), 8000, 3000)
    )
    assert seconds_of([inside]) == [0.25]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("s-{0..3}.tar", "there is no shard s-2.tar"),
        ("s-*.tgz", "is compressed"),
        ("none-*.tar", "there is no shard none-*.tar"),
        ("text.tar", "cannot be read as a tar file"),
        ("empty.tar", "cannot be read as a tar file"),
        ("bare.tar", "holds no rows"),
    ],
)
def test_what_is_no_shard_is_told(source: str, problem: str, tmp_path: Path) -> None:
    for number in range(2):
        write_shard(tmp_path / f"s-{number}.tar", {"1.txt": "one"})
    write_shard(tmp_path / "bare.tar", {"README": "no row"})
    (tmp_path / "text.tar").write_text("no tar file\n" * 100)
    (tmp_path / "empty.tar").touch()
    with pytest.raises(DataError) as error:
        read_table(source, folder=tmp_path)
    assert problem in str(error.value)


def test_a_folder_of_shards_is_told_from_other_folders(tmp_path: Path) -> None:
    write_shard(tmp_path / "shards" / "train-00.tar", {"1.txt": "one"})
    write_shard(tmp_path / "shards" / "train-01.tar", {"1.txt": "one"})
    write_shard(tmp_path / "shards" / "val.tar", {"1.txt": "one"})
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    assert (
        is_shards("shards", tmp_path)
        and not is_shards("photos", tmp_path)
        and not is_shards("gone", tmp_path)
    )
    assert {name: path.name for name, path in shard_patterns(tmp_path / "shards").items()} == {
        "train": "train-[0-9]*.tar",
        "val": "val.tar",
    }


def test_a_name_that_two_rows_have_leads_to_neither(tmp_path: Path) -> None:
    shard = tmp_path / "s.tar"
    with tarfile.open(shard, "w") as tar:
        for name, content in (("1.png", png(1)), ("1.cls", b"0"), ("2.png", png(2)), ("2.cls", b"1")) * 2:
            add(tar, tarfile.TarInfo(name), content)
            if name == "2.cls":
                add(tar, tarfile.TarInfo("3.txt"), b"texts are read where they stand")
    shards = read_shards(str(shard), "data")
    assert [row for row in shards.rows if "image" in row] == []
    assert len([row for row in shards.rows if "text" in row]) == 2
    assert {fault.reason for fault in shards.faults} == {"name used twice"} and len(shards.faults) == 4


def add(tar: tarfile.TarFile, header: tarfile.TarInfo, content: bytes = b"") -> None:
    header.size = len(content)
    tar.addfile(header, io.BytesIO(content))


def test_a_member_whose_name_is_a_path_elsewhere_is_read_from_its_shard(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(9))
    write_shard(tmp_path / "s.tar", {f"{tmp_path}/secret.png": png(1), "../secret.png": png(2)})
    shards = read_shards(str(tmp_path / "s.tar"), "data")
    contents = [opened_file(os.path.join(shards.base, row["image"])).read() for row in shards.rows]
    assert contents == [png(1), png(2)]


def test_hard_links_are_the_files_that_they_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        add(tar, tarfile.TarInfo("1.png"), png(1))
        for name in ("2.png", "3.png"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, "1.png" if name == "2.png" else "no such.png"
            tar.addfile(link)
    shards = read_shards(str(tmp_path / "s.tar"), "data")
    assert [row["image"] for row in shards.rows] == ["s.tar/1.png", "s.tar/2.png"]
    assert opened_file(str(tmp_path / "s.tar" / "2.png")).read() == png(1)


@pytest.mark.parametrize(
    "form", [["--format=gnu"], ["--sparse-version=0.1"], ["--sparse-version=1.0"]], ids=str
)
def test_sparse_members_are_the_files_that_they_were(form: list[str], tmp_path: Path) -> None:
    with open(tmp_path / "1.bin", "wb") as file:
        for place in range(7):
            file.seek(place << 16)
            file.write(bytes([place + 1]) * 10)
        file.truncate(1 << 19)
    with open(tmp_path / "2.bin", "wb") as file:
        file.truncate(1 << 16)
    (tmp_path / "3.txt").write_text("behind")
    more = [] if form[0].startswith("--format") else ["--format=pax"]
    names = ["1.bin", "2.bin", "3.txt"]
    subprocess.run(["tar", "-S", *more, *form, "-cf", "s.tar", *names], cwd=tmp_path, check=True)
    for _ in range(2):  # from the headers, then from the index that was kept
        assert not read_shards(str(tmp_path / "s.tar"), "data").faults
        for name in names:
            assert opened_file(str(tmp_path / "s.tar" / name)).read() == (tmp_path / name).read_bytes()
        forget()


def test_tar_files_that_were_joined_end_to_end_are_a_fault(tmp_path: Path) -> None:
    both = [write_shard(tmp_path / f"{name}.tar", {f"{name}.txt": name}).read_bytes() for name in "ab"]
    (tmp_path / "joined.tar").write_bytes(b"".join(both))
    (fault,) = read_shards(str(tmp_path / "joined.tar"), "data").faults
    assert "goes on behind its end" in fault.detail


def test_what_is_wrong_with_a_shard_is_told_once_however_often_a_reader_goes_on_behind_it(
    tmp_path: Path,
) -> None:
    shard = write_shard(tmp_path / "s.tar", {"1.txt": "one", "2.txt": "two"})
    shard.write_bytes(shard.read_bytes()[:-1024] + shard.read_bytes())
    told = [list(rows_of_shard(shard, str(tmp_path), "data", lambda _: None, begin)) for begin in range(4)]
    assert [[name for name, _ in rows] for rows in told] == [
        ["s.tar/1", "s.tar/2", "s.tar"],
        ["s.tar/2", "s.tar"],
        ["s.tar"],
        [],
    ]


@pytest.mark.parametrize("name", ["S.TAR", "s[1].tar", "s{a}.tar"])
def test_shards_are_read_by_the_names_that_they_have(name: str, tmp_path: Path) -> None:
    write_shard(tmp_path / name, {"1.png": png(1), "1.txt": "\ufeffmarked"})
    (row,) = read_shards(name, "data", tmp_path).rows
    assert row["text"] == "marked"
    assert opened_file(str(tmp_path / row["image"])).read() == png(1)
