"""The page of shards and streams, executed as it is written, but for the names of data sets that are not here."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.recipe import load_recipe
from tests.unit.data.shard_files import write_shard

PAGE = (Path(sf.__file__).parents[2] / "docs" / "streaming.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_its_streams_are_trained_on(tmp_path: Path) -> None:
    own, of_hub = blocks("python")
    space: dict[str, Any] = {}
    exec(compile(own, "docs/streaming.md", "exec"), space)
    result = space["result"]
    assert result.updates == 200 and result.last["metrics"]["accuracy"] > 0.8
    lines = [json.dumps({"x": [number, -number], "y": number % 2}) for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    local = of_hub.replace('"allenai/c4", "en"', '"json", data_files="rows.jsonl"').replace(
        "10_000", "5, track=False"
    )
    assert local.count("rows.jsonl") == 1

    def collate(rows: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([row["x"] for row in rows]).float(), torch.tensor([row["y"] for row in rows])

    space = {"sf": sf, "datasets": datasets, "model": nn.Linear(2, 2), "encode": dict, "collate": collate}
    exec(compile(local, "docs/streaming.md", "exec"), space)


def test_its_recipes_are_read() -> None:
    shards, own, texts, several = blocks("yaml")
    end = "optimizer: {adamw: {learning_rate: 1.0e-3}}\n"
    Path("shards.yaml").write_text(
        f"name: a\ntask: image-classification\nmodel: m\n{shards}{end}train: {{epochs: 1, global_batch: 2}}\n"
    )
    assert load_recipe("shards.yaml").data.train_sources[0].endswith("shards/train-{000..127}.tar")
    Path("own.yaml").write_text(f"name: a\n{own}{end}")
    assert load_recipe("own.yaml").train.updates == 10_000
    Path("texts.yaml").write_text(f"name: a\nmodel: m\n{texts}{end}")
    assert load_recipe("texts.yaml").data.stream == 1024
    train = "train: {updates: 10, global_batch: 2}\n"
    Path("several.yaml").write_text(f"name: a\ntask: causal-lm\nmodel: m\n{several}{end}{train}")
    assert load_recipe("several.yaml").data.stream == 1024


@pytest.mark.parametrize(
    "name", ["cls", "txt", "json", "index", "cls2", "transcript", "seg.png", "npy", "jpg", "flac"]
)
def test_its_columns_are_those_of_members(name: str, tmp_path: Path) -> None:
    from snugfit.data.files.shards import read_shards

    row = next(line for line in PAGE.splitlines() if line.startswith("| `0001") and f".{name}`" in line)
    column = {"json": "text", "seg.png": "seg.png", "npy": "npy"}.get(name) or re.findall(
        r"`(\w+)`", row.split("|")[2]
    )
    content = {"json": '{"text": "a"}'}.get(name, "1")
    write_shard(tmp_path / "s.tar", {f"0001.{name}": content})
    (read,) = read_shards("s.tar", "data", tmp_path).rows
    assert list(read) == ([column] if isinstance(column, str) else column or [name])
