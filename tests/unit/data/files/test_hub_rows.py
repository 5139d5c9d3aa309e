"""Rows of Hugging Face data sets, on the disk and by name from a server that answers as the hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.files.hub_rows import _by_names, hub_name
from snugfit.data.sources import read_table
from snugfit.errors import DataError
from tests.unit.data.local_hub import local_hub

datasets = pytest.importorskip("datasets")

_ROWS = {"text": ["fine", "bad", "who knows"], "label": [1, 0, -1], "tags": [[0, 1], [], None]}


def _saved(folder: Path) -> Path:
    kinds = datasets.ClassLabel(names=["no", "yes"])
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": kinds, "tags": datasets.List(kinds)}
    )
    datasets.Dataset.from_dict(_ROWS, features=features).save_to_disk(str(folder))
    return folder


def test_a_data_set_on_the_disk_has_the_names_of_its_classes(tmp_path: Path) -> None:
    table = read_table(str(_saved(tmp_path / "set")))
    assert table.columns == ("text", "label", "tags")
    assert table.rows == [
        {"text": "fine", "label": "yes", "tags": ["no", "yes"]},
        {"text": "bad", "label": "no", "tags": []},
        {"text": "who knows", "label": None, "tags": None},
    ]
    assert table.lines == [1, 2, 3]


def test_its_digest_is_that_of_its_rows_wherever_it_lies(tmp_path: Path) -> None:
    first, second = _saved(tmp_path / "a"), _saved(tmp_path / "b")
    assert read_table(str(first)).sha256 == read_table("b", folder=tmp_path).sha256
    datasets.Dataset.from_dict({"text": ["other"]}).save_to_disk(str(tmp_path / "c"))
    assert read_table(str(second)).sha256 != read_table(str(tmp_path / "c")).sha256


def test_pictures_stay_bytes_that_need_no_decoder(tmp_path: Path) -> None:
    pictures = datasets.Dataset.from_dict(
        {"image": [{"bytes": b"no picture", "path": None}]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    pictures.save_to_disk(str(tmp_path / "set"))
    assert read_table(str(tmp_path / "set")).rows[0]["image"]["bytes"] == b"no picture"


def test_several_splits_are_named_to_choose_from(tmp_path: Path) -> None:
    part = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict(train=part, test=part).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(DataError, match="holds the splits test, train of a data set. Name one of them"):
        read_table(str(tmp_path / "set"))
    assert read_table(str(tmp_path / "set/test")).rows == [{"text": "a"}]


def test_a_torn_data_set_is_an_error_of_its_setting(tmp_path: Path) -> None:
    folder = _saved(tmp_path / "set")
    (folder / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"data.train: .*set cannot be loaded: .*Save it again") as caught:
        read_table(str(folder), setting="data.train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hf://imdb", ("imdb", None, "train")),
        ("hf://stanfordnlp/imdb:test[:10%]", ("stanfordnlp/imdb", None, "test[:10%]")),
        ("hf://nyu-mll/glue/mrpc:validation", ("nyu-mll/glue", "mrpc", "validation")),
    ],
)
def test_a_name_has_an_owner_a_configuration_and_a_split(source: str, parts: tuple[Any, ...]) -> None:
    assert tuple(hub_name(source, "data.train")) == parts


@pytest.mark.parametrize("source", ["hf://", "hf://a/b/c/d", "hf://a/b:", "hf://a b", "hf:///a"])
def test_what_is_no_name_is_refused_with_an_example(source: str) -> None:
    with pytest.raises(DataError, match=r"data.train: '.*' is no name .* hf://nyu-mll/glue/mrpc:validation"):
        hub_name(source, "data.train")


_READ = """
import json, sys
from snugfit.data.sources import read_table
from snugfit.errors import DataError
for source in sys.argv[1:]:
    try:
        print(json.dumps(read_table(source, setting="data.train").rows))
    except DataError as error:
        print(json.dumps(str(error)))
"""


def _read(endpoint: str, cache: Path, *sources: str, offline: bool = False) -> list[Any]:
    """Read sources in a process of its own, as the library looks at the environment when it is imported."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": str(int(offline)),
    }
    command = [sys.executable, "-c", _READ, *sources]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_data_set_is_read_by_its_name_and_from_then_on_without_the_hub(tmp_path: Path) -> None:
    with local_hub("me/days", {"train.csv": b"text,label\nfine,good\nrain,bad\n"}) as endpoint:
        rows, some, split, config, absent = _read(
            endpoint,
            tmp_path,
            "hf://me/days",
            "hf://me/days:train[1:]",
            "hf://me/days:test",
            "hf://me/days/other",
            "hf://me/nights",
        )
    assert rows == [{"text": "fine", "label": "good"}, {"text": "rain", "label": "bad"}]
    assert some == rows[1:]
    assert "Should be one of ['train']" in split
    assert "Available: ['default']" in config
    assert absent.startswith("data.train: hf://me/nights cannot be loaded")
    assert "hf auth login" in absent
    cached, unknown = _read(endpoint, tmp_path, "hf://me/days", "hf://me/nights", offline=True)
    assert cached == rows
    assert "save_to_disk('FOLDER')" in unknown


def test_a_recipe_is_begun_with_a_data_set_on_the_disk_and_with_the_name_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from snugfit.tools.init.request import Request
    from snugfit.tools.init.source import find_source

    told: list[str] = []
    rows = {
        "text": [f"a text of {kind} words, number {n}" for kind in ("good", "bad") for n in range(8)],
        "label": ["good"] * 8 + ["bad"] * 8,
    }
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "set"))
    source = find_source(str(tmp_path / "set"), None, Request(), told.append)
    assert source.path == tmp_path / "set"
    monkeypatch.setattr(
        "snugfit.data.sources.read_hub", lambda name, setting: datasets.Dataset.from_dict(rows).to_list()
    )
    monkeypatch.chdir(tmp_path)
    named = find_source("hf://me/days", None, Request(), told.append)
    assert (named.name, named.content.columns) == ("hf://me/days", ("text", "label"))


def test_a_class_without_a_name_stays_a_number() -> None:
    named = _by_names(datasets.ClassLabel(names=["no"]))
    assert named is not None
    assert [named(number) for number in (0, 7, -1, None)] == ["no", 7, None, None]
